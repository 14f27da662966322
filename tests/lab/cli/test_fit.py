"""``diffattn fit``, as someone with losses of their own calls it."""

import json

import pytest

from diffattn.lab.report.paper import scaling_curves


@pytest.fixture
def table(tmp_path):
    """The published losses over tokens."""
    groups = scaling_curves()["tokens"].points()
    rows = [f"{name},{x},{loss}" for name, points in groups.items() for x, loss in points]
    path = tmp_path / "losses.csv"
    path.write_text("\n".join(["name,tokens,loss", *rows]))
    return path


def test_fits_and_shares_are_printed(cli, table):
    done = cli("fit", table)
    assert (done.code, done.err) == (0, "")
    text = " ".join(done.out.split())
    assert "softmax 25.17 (7.272 to 43.08) 1.076 (0.8708 to 1.281) 2.47" in text
    assert "diff 160 251.26 63.7 % 55.1 to 73.5 %" in text
    assert "no estimate: both x must lie within the points of their fits" in text


def test_extrapolation_has_to_be_asked_for(cli, table):
    refused = cli("fit", table, "--at", "320", "--json")
    (row,) = json.loads(refused.out)["equivalents"]
    assert row["ratio"] is None
    assert "asked for" in row["refused"]
    asked = cli("fit", table, "--at", "320", "--extrapolate", "--json")
    (row,) = json.loads(asked.out)["equivalents"]
    assert (row["extrapolated"], row["refused"]) == (True, None)


def test_another_baseline_turns_the_share_around(cli, table):
    done = cli("fit", table, "--baseline", "diff", "--at", "251.26", "--json")
    (row,) = json.loads(done.out)["equivalents"]
    assert (row["type"], row["baseline"]) == ("softmax", "diff")
    assert row["other_x"] == pytest.approx(160, rel=1e-3)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--baseline", "dif"], "--baseline must be in {softmax, diff}, got 'dif'. Did you"),
        (["--form", "cubic"], "--form must be in {offset, kaplan}"),
        (["--at", "nan"], "--at: must be positive and finite"),
    ],
)
def test_misuse_is_one_line(cli, table, arguments, message):
    done = cli("fit", table, *arguments)
    assert (done.code, done.out) == (2, "")
    assert message in done.err
    assert len(done.err.splitlines()) == 1
