"""Labels of models as a user types them."""

import pytest

from diffattn.errors import ConfigError
from diffattn.lab.inference.labels import labelled


def test_labels_are_given_or_the_last_part_of_the_path(tmp_path):
    odd = tmp_path / "a=b"
    odd.mkdir()  # a path that exists is no label
    assert labelled(["runs/a", "two=runs/b", str(odd)]) == {
        "a": "runs/a", "two": "runs/b", "a=b": str(odd),
    }  # fmt: skip


@pytest.mark.parametrize(
    ("models", "message"),
    [
        (["x/a", "y/a"], "MODEL: labels must differ, got 'a' twice"),
        (["=runs/a"], r"MODEL: must be \[LABEL=\]PATH"),
        ([".a=runs/a"], r"MODEL: must be \[LABEL=\]PATH"),
        ([], "MODEL: one model or more is needed"),
    ],
)
def test_bad_labels_name_the_option(models, message):
    with pytest.raises(ConfigError, match=message):
        labelled(models, option="MODEL")
