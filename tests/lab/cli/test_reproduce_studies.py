"""``diffattn reproduce STUDY`` and its report, as a new user calls them."""

import json
from functools import partial

import pytest

from diffattn.lab.catalog.models import SWEPT, TYPES
from diffattn.lab.catalog.recipes import recall
from diffattn.lab.records.fields import checked
from diffattn.lab.records.study_results import RESULTS
from diffattn.lab.studies import practical
from diffattn.lab.training import practical_measures


def assert_study_and_report(cli, folder, command, head, num_rows):
    """The first call trains, the second prints results, the report is the same page."""
    first = cli(*command)
    assert first.code == 0, first
    assert f"Page: {folder / 'report.html'}" in first.out.splitlines()
    again = cli(*command, "--json")
    assert again.code == 0
    assert again.out == (folder / "results.json").read_text(encoding="utf-8")
    page = (folder / "report.html").read_bytes()
    table = cli("report", folder, "--markdown").out.splitlines()
    assert table[0].startswith(head)
    assert len([line for line in table if line.startswith("|")]) == 2 + num_rows
    written = folder.parent / "page.html"
    assert cli("report", folder, "--out", written).out == f"{written}\n"
    assert written.read_bytes() == page
    other = cli(*command, "--seeds", "1")
    assert (other.code, other.out) == (2, "")
    assert "must hold this configuration to be continued" in other.err
    return first, again


@pytest.mark.scheduled
def test_reproduce_text_trains_compares_and_reports(cli, here, small, tmp_path):
    out = tmp_path / "study"
    command = ("reproduce", "text", "--scale", "smoke", "--out", out, *small)
    head = "Uninformative about attention types: "
    rows = 4 + (2 + 1) + (2 + 3)
    first, again = assert_study_and_report(cli, out, command, head, rows)
    end = first.out.splitlines()
    assert end[0].startswith(head)
    assert len(end) <= 20
    assert max(map(len, end[:-4])) <= 100
    assert f"  diffattn evaluate block_perplexity --quick {out}" in end
    lines = first.err.splitlines()
    assert lines[0].startswith("training a byte-level BPE of 300 entries")
    assert lines[2] == "comparison: training 5 of 5 models"
    assert lines[3].startswith("1/30 steps (3%); softmax-seed0")
    assert [line for line in lines if line.startswith("30/30 steps")] == [lines[-3]]
    assert lines[-2].startswith("fitting ")
    assert lines[-1] == "comparing"
    assert list(json.loads(again.out)["variants"]) == list(SWEPT)
    finished, checking, comparing = again.err.splitlines()
    assert finished == f"{out} is finished: checking that it is what was asked for."
    assert checking.startswith("checking ")
    assert comparing == "comparing"
    table = cli("report", out, "--markdown").out.splitlines()
    assert table[2].startswith("| Model | Parameters, FLOPs per token | ")


@pytest.mark.scheduled
def test_reproduce_recall_trains_counts_and_reports(cli, tmp_path, monkeypatch):
    settings = recall.smoke()
    first_task = {"tasks": settings["tasks"][:1]}
    monkeypatch.setitem(recall.RECALL, "smoke", lambda: settings | first_task)
    out = tmp_path / "study"
    command = ("reproduce", "recall", "--scale", "smoke", "--workers", "1", "--out", out)
    head = "| Model | Learning rate | Learned by | Median step |"
    first, again = assert_study_and_report(cli, out, command, head, 4 + 2)
    lines = first.err.splitlines()
    assert lines[0] == "trials: training 6 of 6 models"
    assert lines[1].startswith("1/24 steps (4%); noisy_recall-softmax-seed0")
    assert lines[-1].startswith("24/24 steps (100%)")
    assert list(json.loads(again.out)["tasks"]["noisy_recall"]["types"]) == list(TYPES)
    answer = cli("generate", out)
    assert answer.code == 0
    assert "study is a study. Its best differential model is taken: " in answer.err
    assert answer.err.endswith("after it was trained.\n")
    refused = cli("evaluate", "ar_hits", out, "--quick", "--out", tmp_path / "x")
    assert refused.code == 2
    assert "must read text to be evaluated, got a model of a recall task" in refused.err


def test_reproduce_practical_trains_measures_and_reports(cli, tmp_path, monkeypatch):
    for name in ("_SEQUENCES", "_ORDERED_SETS"):
        monkeypatch.setattr(practical_measures, name, 2)
    few = partial(practical_measures.best_accuracy, num_sequences=8)
    monkeypatch.setattr(practical, "best_accuracy", few)
    out = tmp_path / "study"
    command = ("reproduce", "practical", "--scale", "smoke", "--workers", "1", "--out", out)
    head = "| Model | Measure | Softmax | Model | Difference |"
    _, again = assert_study_and_report(cli, out, command, head, 6 * (4 + 2))
    results = json.loads(again.out)
    checked(RESULTS["practical"][0], results, "results")
    page = (out / "report.html").read_text(encoding="utf-8")
    assert all(title in page for title in ("Does it find more keys?", "Does the order of examples"))
    assert len(list((out / "runs").glob("*/model"))) == 2 * 7
