"""A run whose gradients are measured ends as one that is not, and its record says that it was."""

from dataclasses import replace
from types import SimpleNamespace

import pytest

from continued_runs import assert_same_files, stop
from diffattn.errors import ConfigError
from diffattn.files.io import log_facts, read_json, read_jsonl
from diffattn.lab.training.config import EngineConfig
from diffattn.lab.training.monitoring.monitor import GRADIENTS, GradientFlowCallback
from diffattn.lab.training.run import train

SAME = ("metrics.jsonl", "model/model.safetensors")


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"gradient_steps": (2, 2)}, "gradient_steps must rise from 1 or more to at most"),
        # Hooks that are added to a model after it was compiled are not called.
        (
            {"gradient_steps": (2, 6), "engine": EngineConfig(compile=True)},
            "compile must be false where gradient_steps are",
        ),
    ],
)
def test_steps_that_cannot_be_measured_are_refused(make_run, settings, message):
    with pytest.raises(ConfigError, match=message):
        replace(make_run(), **settings)


def test_an_unmeasured_run_is_recorded_as_before(make_run):
    assert "gradient_steps" not in make_run().resolved()
    assert replace(make_run(), gradient_steps=(1, 4)).resolved()["gradient_steps"] == [1, 4]


@pytest.mark.scheduled
def test_measuring_changes_nothing(make_run, finished, data, tmp_path):
    """Nor does an interruption: the row of step 6 is measured again."""
    config = replace(make_run("diff"), gradient_steps=(1, 6, 12))
    stop(config, data, tmp_path / "again", 8)
    for name in ("again", "whole"):
        train(config, data, tmp_path / name)
        assert_same_files(tmp_path / name, finished / "diff", SAME)
    results = read_json(tmp_path / "whole" / "results.json")
    rows = read_jsonl(tmp_path / "whole" / "gradients.jsonl", recorded=results["gradients"])
    assert rows == read_jsonl(tmp_path / "again" / "gradients.jsonl")
    assert [row["step"] for row in rows] == [1, 6, 12]
    logged = read_jsonl(tmp_path / "whole" / "metrics.jsonl", recorded=results["metrics"])
    norms = {row["step"]: row["gradient_norm"] for row in logged if "train_loss" in row}
    assert all(row["gradient_norm"] == norms[row["step"]] for row in rows if row["step"] in norms)
    assert rows[0]["layers"][0]["q"]["update"] == pytest.approx(1.0, abs=0.05)


def test_a_file_without_rows_ends_a_run_whose_steps_are_all_left_out(make_run, tmp_path):
    config = replace(make_run(), gradient_steps=(1, 4))
    log = GradientFlowCallback(tmp_path, config, None)
    log.on_train_begin(None, SimpleNamespace(global_step=0), None)
    assert log_facts(tmp_path / GRADIENTS)["rows"] == 0
