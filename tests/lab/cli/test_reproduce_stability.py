"""``diffattn reproduce stability`` and its report, as a new user calls them."""

import json

import pytest


def test_a_dry_run_prints_the_study(cli):
    done = cli("reproduce", "stability", "--scale", "smoke", "--seeds", "4,5", "--dry-run",
               "--set", "train.num_steps=50")  # fmt: skip
    assert (done.code, done.err) == (0, "")
    resolved = json.loads(done.out)
    assert (resolved["seeds"], resolved["config"]["train"]["num_steps"]) == ([4, 5], 50)


@pytest.mark.scheduled
def test_reproduce_stability_trains_counts_and_reports(cli, corpus, tmp_path):
    out = tmp_path / "study"
    command = ("reproduce", "stability", "--scale", "smoke", "--workers", "1", "--out", out,
               "--set", f"data.source={corpus}", "--set", "data.vocab_size=300",
               "--set", "data.validation_fraction=0.2")  # fmt: skip
    first = cli(*command)
    assert first.code == 0, first
    table = first.out.splitlines()
    assert table[0].startswith("| Model | Learning rate | Diverged |")
    rows = [line for line in table if line.startswith("|")]
    assert len(rows) == 2 + 8 * 2  # models, rates
    assert table[-1] == f"Report: {out / 'report.html'}"
    again = cli(*command, "--json")
    assert again.code == 0
    assert json.loads(again.out)["kind"] == "stability"
    page = (out / "report.html").read_bytes()
    assert cli("report", out, "--markdown").out == "\n".join(rows) + "\n"
    assert cli("report", out, "--out", tmp_path / "page.html").code == 0
    assert (tmp_path / "page.html").read_bytes() == page
    other = cli(*command, "--seeds", "1")
    assert (other.code, other.out) == (2, "")
    assert "must hold this configuration to be continued" in other.err
