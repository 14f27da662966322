"""Trackers get the losses that transformers knows, and our own numbers too."""

import importlib
import importlib.util
import sys

import pytest
from transformers import TrainerCallback
from transformers.integrations import integration_utils

from continued_runs import assert_same_files
from diffattn.errors import ConfigError
from diffattn.files.io import read_jsonl
from diffattn.lab.training.config import EngineConfig
from diffattn.lab.training.run import train


@pytest.fixture
def tracker(tmp_path, monkeypatch):
    """An installed ``trackio`` that keeps what it is given."""
    (tmp_path / "modules").mkdir()
    (tmp_path / "modules" / "trackio.py").touch()
    monkeypatch.syspath_prepend(tmp_path / "modules")
    given = []

    class Tracker(TrainerCallback):
        def on_log(self, args, state, control, logs=None, **kwargs):
            given.append((state.global_step, dict(logs)))

    monkeypatch.setitem(integration_utils.INTEGRATION_TO_CALLBACK, "trackio", Tracker)
    yield given
    sys.modules.pop("trackio", None)


def test_a_tracker_gets_losses_lambda_and_what_is_watched(
    tracker, finished, make_run, data, tmp_path
):
    config = make_run("diff", engine={"report_to": "trackio", "watch_every": 6})
    train(config, data, tmp_path / "run")
    assert_same_files(tmp_path / "run", finished / "diff")
    for row in read_jsonl(tmp_path / "run" / "metrics.jsonl"):
        values = {}
        for step, logs in tracker:
            values |= logs if step == row["step"] else {}
        if "train_loss" in row:
            assert values["loss"] == row["train_loss"]
            assert values["grad_norm"] == row["gradient_norm"]
        else:
            assert [values["lam/0"], values["lam/1"]] == row["lam"]
            assert values["eval_loss"] == row["validation_loss"]
            name = "eval_parts/first_occurrence/loss"
            assert values[name] == row["validation_parts"]["first_occurrence"]
    watched = [logs for step, logs in tracker if "layers/1/logit_max" in logs]
    assert len(watched) == 2
    assert watched[0]["speed/tokens_per_second"] > 0
    assert all(isinstance(x, int | float) for _, logs in tracker for x in logs.values())


def test_one_that_is_not_installed_is_named_before_anything_is_written(
    make_run, data, tmp_path, monkeypatch
):
    installed = "diffattn.lab.training.monitoring.monitor.get_available_reporting_integrations"
    monkeypatch.setattr(installed, lambda: ["tensorboard"])
    message = "report_to must name trackers that are installed, got 'wandb'.*pip"
    with pytest.raises(ConfigError, match=message):
        train(make_run(engine={"report_to": "wandb"}), data, tmp_path / "run")
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"report_to": "tensorbord"}, "got 'tensorbord'. Did you mean 'tensorboard'?"),
        ({"report_to": "none,wandb"}, "none or names of trackers, got 'none,wandb'"),
        ({"peak_flops": 1e12}, "peak_flops must come with watch_every"),
    ],
    ids=str,
)
def test_impossible_settings_are_named(settings, message):
    with pytest.raises(ConfigError, match=f"EngineConfig: .*{message}"):
        EngineConfig(**settings)


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of tensorboard's own
def test_tensorboard_writes_beside_the_run(make_run, data, tmp_path):
    accumulator = importlib.import_module("tensorboard.backend.event_processing.event_accumulator")
    train(make_run(engine={"report_to": "tensorboard"}, num_steps=4), data, tmp_path / "run")
    events = accumulator.EventAccumulator(str(tmp_path / "run" / "tracking")).Reload()
    losses = [(e.step, e.value) for e in events.Scalars("eval/loss")]
    rows = read_jsonl(tmp_path / "run" / "metrics.jsonl")
    expected = [(r["step"], r["validation_loss"]) for r in rows if "validation_loss" in r]
    assert losses == [(step, pytest.approx(loss)) for step, loss in expected]
    assert len(events.Scalars("train/lam/0")) == len(expected)
