"""``diffattn check --layer`` on a file of the user's."""

import json
from dataclasses import replace

import pytest

from diffattn.lab.layer_check import compare

COPY = """
from diffattn import DiffAttention


class Zero(DiffAttention):
    def __init__(self, hidden_size, num_heads, head_dim, layer_idx):
        super().__init__(hidden_size, num_heads, head_dim, layer_idx=layer_idx)
        for vector in self.lambda_bias.parameters():
            vector.data.zero_()
"""


@pytest.fixture(autouse=True)
def _my_layers(tmp_path, monkeypatch):
    (tmp_path / "my_layers.py").write_text(COPY)
    monkeypatch.chdir(tmp_path)


@pytest.mark.parametrize(
    ("name", "message", "code"),
    [
        ("DiffAttention", "Right: off by ", 0),
        ("Zero", "zero_vectors: All four vectors of λ start at zero", 1),
    ],
)
def test_a_layer_is_right_or_fails(name, message, code, cli):
    called = cli("check", "--layer", f"my_layers:{name}")
    assert called.code == code
    assert called.out.startswith(f"{name}(hidden_size=64, ")
    assert f"\n{message}" in called.out


def test_a_layer_that_nothing_explains_fails(cli, monkeypatch):
    real = compare.check_layer
    monkeypatch.setattr(compare, "check_layer", lambda user: replace(real(user), explained=False))
    called = cli("check", "--layer", "my_layers:DiffAttention")
    assert (called.code, "\nNo formula gives its output: off by " in called.out) == (1, True)


def test_json_names_the_mistakes(cli):
    report = json.loads(cli("check", "--layer", "my_layers:Zero", "--json").out)
    assert (report["right"], list(report["mistakes"])) == (False, ["zero_vectors"])


def test_a_layer_that_does_not_exist_is_one_line(fails):
    line = fails("check", "--layer", "my_layers:Nothing", code=2)
    assert line == "diffattn: --layer: my_layers has no class or function 'Nothing'."
