"""A run that diverges is a result like any other, where a study says so."""

import math

from diffattn.files.io import read_json, read_jsonl
from diffattn.lab.training.run import train_recorded
from record_files import entries

STEP_BY_STEP = {"log_every": 1, "evaluate_every": 12}


def test_a_run_that_diverges_is_recorded_and_not_made_again(make_run, data, tmp_path):
    config = make_run(learning_rate=1e30, final_learning_rate=1e30, **STEP_BY_STEP)
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
    files = ["launches.jsonl", "metrics.jsonl", "postmortem.json", "results.json", "run.json"]
    assert entries(run) == files
    assert train_recorded(config, data, run) == results


def test_a_stable_run_is_as_any_other(make_run, data, tmp_path):
    config = make_run(**STEP_BY_STEP)
    results = train_recorded(config, data, tmp_path / "run")
    assert 0 < results["validation_loss"] < math.log(300)
    assert "diverged_step" not in results
    rows = read_jsonl(tmp_path / "run" / "metrics.jsonl", recorded=results["metrics"])
    assert [row["step"] for row in rows if "train_loss" in row] == list(range(1, 13))
    assert train_recorded(config, data, tmp_path / "run") == results
