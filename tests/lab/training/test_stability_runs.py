"""Runs of the stability study: a run that diverges is a result like any other."""

import math
from dataclasses import fields

import pytest

from diffattn.files.io import read_json, read_jsonl
from diffattn.lab.training.run import StabilityRun, train_recorded
from record_files import entries


@pytest.fixture
def make_stability_run(make_run):
    def make(**changes):
        run = make_run(**{"log_every": 1, "evaluate_every": 12} | changes)
        return StabilityRun(**{field.name: getattr(run, field.name) for field in fields(run)})

    return make


def test_a_run_that_diverges_is_recorded_and_not_made_again(make_stability_run, data, tmp_path):
    config = make_stability_run(learning_rate=1e30, final_learning_rate=1e30)
    run = tmp_path / "run"
    results = train_recorded(config, data, run)
    assert results == read_json(run / "results.json")
    assert results["validation_loss"] is None
    assert f"at step {results['diverged_step']}." in results["reason"]
    rows = read_jsonl(run / "metrics.jsonl", recorded=results["metrics"])
    steps = [row["step"] for row in rows if "train_loss" in row]
    assert steps == list(range(1, len(steps) + 1))
    assert len(steps) < 12
    assert all(math.isfinite(row["train_loss"]) for row in rows if "train_loss" in row)
    assert entries(run) == ["launches.jsonl", "metrics.jsonl", "results.json", "run.json"]
    assert train_recorded(config, data, run) == results


def test_a_stable_run_keeps_every_step_and_no_weights(make_stability_run, data, tmp_path):
    config = make_stability_run()
    results = train_recorded(config, data, tmp_path / "run")
    assert 0 < results["validation_loss"] < math.log(300)
    assert "diverged_step" not in results
    rows = read_jsonl(tmp_path / "run" / "metrics.jsonl", recorded=results["metrics"])
    assert [row["step"] for row in rows if "train_loss" in row] == list(range(1, 13))
    assert not (tmp_path / "run" / "model").exists()
    assert train_recorded(config, data, tmp_path / "run") == results
    assert read_json(tmp_path / "run" / "run.json")["config"]["divergence"] == "recorded"
