"""Values of ``--set`` are taken as their parameter declares them, or refused by name."""

from dataclasses import dataclass
from typing import Any

import pytest

from diffattn.errors import ConfigError
from diffattn.lab.evaluation.registry import parts
from diffattn.lab.evaluation.setting_values import setting_value


@dataclass(frozen=True, kw_only=True)
class Settings:
    """A field of every declared type."""

    count: int = 1
    limit: int | None = None
    share: float = 0.5
    chat: bool = False
    text: str = "a"
    file: str | None = None
    lengths: tuple[int, ...] = (1,)
    depths: tuple[float, ...] | None = None
    tasks: tuple[tuple[int, int], ...] = ((1, 1),)
    names: tuple[str, ...] = ("a",)
    inner: dict[str, Any] | None = None


@pytest.mark.parametrize(
    ("name", "text", "value"),
    [
        ("count", "3", 3),
        ("limit", "null", None),
        ("share", "1", 1),
        ("chat", "true", True),
        ("text", "2024", "2024"),
        ("file", "null", None),
        ("text", "books/", "books/"),
        ("lengths", "[1, 2]", (1, 2)),
        ("depths", "[0, 0.5]", (0, 0.5)),
        ("tasks", "[[4, 2], [1, 1]]", ((4, 2), (1, 1))),
        ("names", '["qa1"]', ("qa1",)),
        ("inner", '{"bits": [4, 8]}', {"bits": [4, 8]}),
    ],
)
def test_values_are_read_by_their_declared_type(name, text, value):
    assert setting_value(Settings, name, f"a.{name}", text) == value


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("count", "three", "--set: a.count must be a whole number, got 'three'."),
        ("count", "2.5", "a.count must be a whole number, got '2.5'."),
        ("count", "true", "a.count must be a whole number, got 'true'."),
        ("limit", "None", "a whole number or null, got 'None'. Did you mean null?"),
        ("share", "NaN", "a.share must be finite, got NaN."),
        ("chat", "False", "a.chat must be true or false, got 'False'. Did you mean false?"),
        ("lengths", "512", "a.lengths must be a list such as [1], got '512'."),
        ("lengths", '["512"]', "a list such as [1]"),
        ("tasks", "[4, 2]", "a list such as [[1, 1]], got '[4, 2]'."),
        ("names", "qa1", """a list such as ["a"], got 'qa1'."""),
        ("inner", "[1]", "a JSON object or null, got '[1]'."),
    ],
)
def test_wrong_types_are_refused_by_name(name, text, message):
    with pytest.raises(ConfigError) as refusal:
        setting_value(Settings, name, f"a.{name}", text)
    assert message in str(refusal.value)


def test_columns_are_names_to_names():
    (part,) = parts(["lm_tasks"], ['lm_tasks.columns={"goal": "aim", "boolq.answer": "label"}'])
    assert part.protocol.columns == {"goal": "aim", "boolq.answer": "label"}
    with pytest.raises(ConfigError, match=r"columns must be in .* got 'gaol'\. Did you mean 'go"):
        parts(["lm_tasks"], ['lm_tasks.columns={"gaol": "aim"}'])
    with pytest.raises(ConfigError, match="columns must be an object of names"):
        parts(["many_shot"], ['many_shot.columns={"text": 1}'])
    with pytest.raises(ConfigError, match="columns must be a JSON object"):
        parts(["hallucination"], ["hallucination.columns=text"])
