"""``diffattn reproduce recall`` and its report, as a new user calls them."""

import json

import pytest

from diffattn.lab.catalog.recipes import recall
from diffattn.models.config.attention_types import ATTENTION_TYPES


@pytest.fixture
def one_task(monkeypatch):
    """The smoke scale with its first task only."""
    settings = recall.smoke()
    settings["tasks"] = settings["tasks"][:1]
    monkeypatch.setitem(recall.RECALL, "smoke", lambda: dict(settings))


@pytest.mark.usefixtures("one_task")
def test_reproduce_recall_trains_counts_and_reports(cli, tmp_path):
    out = tmp_path / "study"
    command = ("reproduce", "recall", "--scale", "smoke", "--workers", "1", "--out", out)
    first = cli(*command)
    assert first.code == 0, first
    table = first.out.splitlines()
    assert table[0].startswith("| Task | Model | Learning rate | Solved |")
    assert len([line for line in table if line.startswith("|")]) == 2 + 4 + 2
    assert table[-1] == f"Report: {out / 'report.html'}"
    lines = first.err.splitlines()
    assert lines[0] == "trials: training 6 of 6 models"
    assert lines[1].startswith("1/24 steps (4%), time left unknown; noisy_recall-softmax-seed0")
    assert lines[-1].startswith("24/24 steps (100%)")

    again = cli(*command, "--json")
    assert (again.code, again.err) == (0, "")
    assert again.out == (out / "results.json").read_text(encoding="utf-8")
    assert list(json.loads(again.out)["tasks"]["noisy_recall"]["types"]) == list(ATTENTION_TYPES)

    page = (out / "report.html").read_bytes()
    assert cli("report", out, "--markdown").out == "\n".join(table[:8]) + "\n"
    written = cli("report", out, "--out", tmp_path / "page.html")
    assert written.out == f"{tmp_path / 'page.html'}\n"
    assert (tmp_path / "page.html").read_bytes() == page
    other = cli(*command, "--seeds", "1")
    assert (other.code, other.out) == (2, "")
    assert "must hold this configuration to be continued" in other.err
