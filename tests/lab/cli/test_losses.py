"""Tables of losses as users write them."""

import json

import pytest

from diffattn.errors import ConfigError
from diffattn.lab.cli.fit import read_losses


def test_csv_and_json_are_read_alike(tmp_path):
    rows = [("mine", 1e6, 4.5), ("theirs", 2e6, 4.25), ("mine", 2e6, 4.0)]
    table = tmp_path / "losses.csv"
    lines = ["name, parameters, seed, loss", *(f"{n}, {x:g}, 0, {y}" for n, x, y in rows)]
    table.write_text("\n".join(lines) + "\n", encoding="utf-8-sig")
    listed = tmp_path / "losses.json"
    listed.write_text(json.dumps([{"name": n, "parameters": x, "loss": y} for n, x, y in rows]))
    expected = {"mine": [(1e6, 4.5), (2e6, 4.0)], "theirs": [(2e6, 4.25)]}
    for path in (table, listed):
        axis, groups = read_losses(path)
        assert (axis, groups) == ("parameters", expected)
        assert list(groups) == ["mine", "theirs"]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "must be a table"),
        ("name,parameters,loss\n", "must be a table"),
        ("name,loss\na,3\n", "a column parameters or a column tokens, got neither"),
        ("name,parameters,tokens,loss\na,1,2,3\n", "got both"),
        ("name,tokens,loss\n,1,3\n", "row 1: name must be text"),
        ("name,tokens,loss\na,1,3\na,two,3\n", "row 2: tokens must be a number, got 'two'"),
        ("name,tokens,loss\na,1\n", "row 1: loss must be a number"),
        ("name,tokens,loss\na,1,nan\n", "row 1: loss must be a number"),
        ("name,tokens,loss\na,-1,3\n", "row 1: tokens must be positive"),
    ],
)
def test_what_is_wrong_is_named(text, message, tmp_path):
    path = tmp_path / "losses.csv"
    path.write_text(text)
    with pytest.raises(ConfigError, match=message):
        read_losses(path)


@pytest.mark.parametrize("text", ["[", "{}", "[1]", "[]", '"a"', "[" * 100_000])
def test_other_json_and_bytes_that_are_no_text_are_refused(text, tmp_path):
    path = tmp_path / "losses.json"
    path.write_text(text)
    with pytest.raises(ConfigError, match="must be"):
        read_losses(path)
    path.write_bytes(b"name,tokens,loss\n\xff,1,2\n")
    with pytest.raises(ConfigError, match="UTF-8"):
        read_losses(path.rename(tmp_path / "losses.csv"))
