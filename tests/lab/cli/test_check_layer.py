"""``diffattn check --layer`` on a file of the user's."""

import json

import pytest

COPY = """
from diffattn import DiffAttention


class Zero(DiffAttention):
    def __init__(self, hidden_size, num_heads, head_dim, layer_idx):
        super().__init__(hidden_size, num_heads, head_dim, layer_idx=layer_idx)
        for vector in self.lambda_bias.parameters():
            vector.data.zero_()


class Other(DiffAttention):
    def forward(self, x):
        return super().forward(x).tanh()
"""


@pytest.fixture(autouse=True)
def _my_layers(tmp_path, monkeypatch):
    (tmp_path / "my_layers.py").write_text(COPY)
    monkeypatch.chdir(tmp_path)


def test_a_right_layer_ends_well(cli):
    called = cli("check", "--layer", "my_layers:DiffAttention", "--json")
    assert called.code == 0
    report = json.loads(called.out)
    assert (report["right"], report["mistakes"]) == (True, {})
    assert "\nRight: off by " in cli("check", "--layer", "my_layers:DiffAttention").out


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("Zero", "zero_vectors: All four vectors of λ start at zero"),
        ("Other", "No formula gives its output: off by "),
    ],
)
def test_a_wrong_layer_fails(name, message, cli):
    called = cli("check", "--layer", f"my_layers:{name}")
    assert called.code == 1
    assert called.out.startswith(f"{name}(hidden_size=64, ")
    assert f"\n{message}" in called.out


def test_a_layer_that_does_not_exist_is_one_line(fails):
    line = fails("check", "--layer", "my_layers:Nothing", code=2)
    assert line == "diffattn: --layer: my_layers has no 'Nothing'."
