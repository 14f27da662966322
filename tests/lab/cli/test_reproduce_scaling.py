"""``diffattn reproduce scaling`` and its report, as a new user calls them."""

import json

import pytest


def test_a_dry_run_prints_the_study(cli):
    done = cli("reproduce", "scaling", "--scale", "smoke", "--seeds", "4,5", "--dry-run",
               "--set", "train.num_steps=12")  # fmt: skip
    assert (done.code, done.err) == (0, "")
    resolved = json.loads(done.out)
    assert (resolved["seeds"], resolved["config"]["train"]["num_steps"]) == ([4, 5], 12)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("scaling", "--scale", "study"), "scale"),
        (("stability", "--extrapolate"), "--extrapolate must be left out"),
    ],
)
def test_misuse_is_one_line(cli, arguments, message):
    done = cli("reproduce", *arguments)
    assert (done.code, done.out) == (2, "")
    assert message in done.err
    assert len(done.err.splitlines()) == 1


@pytest.mark.scheduled
def test_reproduce_scaling_trains_fits_and_reports(cli, corpus, tmp_path):
    out = tmp_path / "study"
    command = ("reproduce", "scaling", "--scale", "smoke", "--workers", "1", "--out", out,
               "--set", f"data.source={corpus}", "--set", "data.vocab_size=300",
               "--set", "data.validation_fraction=0.2")  # fmt: skip
    first = cli(*command)
    assert first.code == 0, first
    table = first.out.splitlines()
    assert table[0].startswith("| Over | Model | a | b | c |")
    assert len([line for line in table if line.startswith("|")]) == 2 + 2 * 4
    assert table[-1] == f"Report: {out / 'report.html'}"
    again = cli(*command, "--extrapolate", "--json")  # reads the same runs again
    assert again.code == 0
    assert json.loads(again.out)["extrapolate"]
    page = (out / "report.html").read_bytes()
    assert cli("report", out, "--out", tmp_path / "page.html").code == 0
    assert (tmp_path / "page.html").read_bytes() == page
    other = cli(*command, "--seeds", "1")
    assert (other.code, other.out) == (2, "")
    assert "must hold this configuration to be continued" in other.err
