"""The committed recall study: whole, clean, and its summary follows from its runs."""

import math
from pathlib import Path

import pytest

from diffattn.files.io import read_json, read_jsonl
from diffattn.lab.records.run import RunRecord
from diffattn.lab.report.page.wording import BLIND
from diffattn.lab.report.recall.files import read_recall_study
from diffattn.lab.studies.recall.reproduce import recall_study
from diffattn.lab.studies.recall.summary import recall_results
from diffattn.lab.studies.recall.sweep import choices, wanted_runs
from diffattn.lab.training.recall import solved_step
from lab.studies.published_study import as_it_was_run, assert_records_only

STUDY = Path(__file__).parents[4] / "published" / "recall"


@pytest.fixture(scope="module")
def results():
    return {path.parent.name: read_json(path) for path in STUDY.glob("runs/*/results.json")}


@pytest.fixture(scope="module")
def config():
    return as_it_was_run(recall_study("study"), STUDY)


@pytest.fixture(scope="module")
def members(config, results):
    assert wanted_runs(config, results) == []
    found = choices(config, results)
    swept = config.sweep({group: choice.tried for group, choice in found.items()})
    return swept + config.trials({group: choice.rate for group, choice in found.items()})


def test_results_follow_from_the_runs(config, results, assert_same_statistics):
    """Every interval and p-value, of which the README's table is generated."""
    committed = read_json(STUDY / "results.json")
    compared = assert_same_statistics(recall_results(config, results), committed)
    types, members = len(config.types), len(config.types) + len(config.controls)
    pairs = math.comb(types, 2) + types * (len(config.controls) - len(BLIND))
    assert compared >= len(config.tasks) * (4 * pairs + 2 * members)
    assert read_recall_study(STUDY).gaps == ()


def test_every_run_is_whole_and_from_a_clean_commit(members, results):
    assert {member.config.name for member in members} == set(results)
    commits = set()
    for member in members:
        run = STUDY / "runs" / member.config.name
        record = RunRecord.read(run)
        assert record.dirty is False
        commits.add(record.commit)
        assert record.config == member.config.resolved()
        rows = [row for row in read_jsonl(run / "metrics.jsonl") if "accuracy" in row]
        measured = results[member.config.name]
        assert rows[0]["step"] == 0
        assert rows[-1]["step"] == measured["steps"]
        assert solved_step(rows, member.config.solved_accuracy) == measured["solved_step"]
        assert measured["solved"] or measured["steps"] == member.config.train.num_steps
    assert None not in commits


def test_a_type_leaves_the_guessing_ceilings(results):
    """Of both tasks, on a test set that no training or choice has seen."""
    for task in {run["task"] for run in results.values()}:
        best = max((run for run in results.values() if run["task"] == task),
                   key=lambda run: run["test_accuracy"])  # fmt: skip
        assert best["test_accuracy"] > 0.99 > max(best["ceilings"].values())


def test_models_without_attention_stay_at_a_guess(config):
    for task in read_json(STUDY / "results.json")["tasks"].values():
        assert task["leak"]["leaks"] is False
        assert all(task["controls"][name]["solved"] == 0 for name in BLIND)


def test_records_only():
    """Weights stay out: the repository carries these files."""
    assert_records_only(STUDY, 11_000_000)
