"""A run that is asked to end saves a checkpoint first."""

import math
import os
import signal
from threading import Thread

import pytest
import torch

from children import in_child
from continued_runs import assert_same_files, steps_of
from diffattn.lab.training.monitoring.signals import StopSignals
from diffattn.lab.training.monitoring.termination import STATUS, Terminated, ended_by_sigterm
from diffattn.lab.training.run import train
from diffattn.lab.training.trainer import RunTrainer
from record_files import entries


@pytest.fixture(autouse=True)
def _in_the_foreground():
    """Also where the tests themselves run in the background."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


def signalled(step, *numbers):
    def on_progress(now, loss):
        if now == step:
            for number in numbers:
                os.kill(os.getpid(), number)

    return on_progress


@pytest.mark.parametrize(
    ("number", "ending"),
    [
        (signal.SIGTERM, Terminated),
        pytest.param(signal.SIGINT, KeyboardInterrupt, marks=pytest.mark.scheduled),
    ],
)
def test_a_signal_saves_the_step_in_work(number, ending, finished, make_run, data, tmp_path):
    before = [signal.getsignal(n) for n in (signal.SIGTERM, signal.SIGINT)]
    with pytest.raises(ending) as end:
        train(make_run("diff"), data, tmp_path / "run", on_progress=signalled(7, number))
    assert [signal.getsignal(n) for n in (signal.SIGTERM, signal.SIGINT)] == before
    assert entries(tmp_path / "run" / "checkpoints") == ["checkpoint-4", "checkpoint-7"]
    state = "stopped after step 7 of 12, whose checkpoint is saved"
    if ending is Terminated:
        assert (end.value.code, end.value.state) == (STATUS, state) == (143, state)
    else:
        assert str(end.value) == state
    assert steps_of(make_run("diff"), data, tmp_path / "run") == list(range(8, 13))
    assert_same_files(tmp_path / "run", finished / "diff")


def test_a_signal_during_an_evaluation_ends_with_its_checkpoint(
    finished, make_run, data, tmp_path, monkeypatch
):
    """A launcher does not wait for another step and a second checkpoint."""
    real = RunTrainer.evaluation_loop

    def evaluation_loop(self, *args, **kwargs):
        if self.state.global_step == 8:
            os.kill(os.getpid(), signal.SIGTERM)
        return real(self, *args, **kwargs)

    with monkeypatch.context() as patch:
        patch.setattr(RunTrainer, "evaluation_loop", evaluation_loop)
        with pytest.raises(Terminated) as end:
            train(make_run("diff"), data, tmp_path / "run")
    assert "after step 8 of 12" in end.value.state
    assert steps_of(make_run("diff"), data, tmp_path / "run")[0] == 9
    assert_same_files(tmp_path / "run", finished / "diff")


def test_a_signal_in_a_step_that_rolls_back_ends_the_run(make_run, bad_batches, data, tmp_path):
    config = make_run(guard={"not_finite": "roll_back"})

    def broken(model, loss):
        os.kill(os.getpid(), signal.SIGTERM)
        return loss * math.nan

    bad_batches(config, {6: broken})
    steps = []

    def run():
        train(config, data, tmp_path, on_progress=lambda step, loss: steps.append(step))

    with pytest.raises(Terminated) as end:
        run()
    assert end.value.state == "stopped after step 6, from which the run goes back to step 4"
    assert steps == [1, 2, 3, 4, 5]
    run()
    assert steps == [1, 2, 3, 4, 5, *range(5, 13)]


def test_a_second_signal_ends_at_once(make_run, data, tmp_path):
    twice = signalled(2, signal.SIGTERM, signal.SIGTERM)
    ended = in_child(lambda: train(make_run(), data, tmp_path / "run", on_progress=twice))
    assert ended == ("died", "SIGTERM")
    assert not (tmp_path / "run" / "checkpoints" / "checkpoint-2").exists()


@pytest.mark.parametrize(
    "launch", [{"WORLD_SIZE": "2"}, {"WORLD_SIZE": "1", "TORCHELASTIC_RUN_ID": "none"}], ids=str
)
def test_where_a_launcher_kills_a_second_sigterm_changes_nothing(launch, monkeypatch):
    """Of torchrun's processes also where there is one."""
    for name, value in launch.items():
        monkeypatch.setenv(name, value)
    with StopSignals() as asked:
        os.kill(os.getpid(), signal.SIGTERM)
        assert signal.getsignal(signal.SIGTERM) == signal.SIG_IGN
        assert signal.getsignal(signal.SIGINT) == signal.default_int_handler
        os.kill(os.getpid(), signal.SIGTERM)
        assert asked.received == signal.SIGTERM


@pytest.mark.scheduled
def test_elsewhere_than_in_the_main_thread_signals_are_left_alone(make_run, data, tmp_path):
    results, config = [], make_run(num_steps=3)
    thread = Thread(target=lambda: results.append(train(config, data, tmp_path / "run")))
    thread.start()
    thread.join()
    assert results[0]["tokens"] == 3 * 128


def test_what_was_ignored_before_stays_ignored():
    """As SIGINT is by jobs in the background."""
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        with StopSignals() as signals:
            os.kill(os.getpid(), signal.SIGINT)
        signals.require_none("nothing is saved", torch.device("cpu"))
    finally:
        signal.signal(signal.SIGINT, before)


def test_who_waits_for_others_cleans_up():
    before, cleaned = signal.getsignal(signal.SIGTERM), []

    def work():
        try:
            os.kill(os.getpid(), signal.SIGTERM)
        finally:
            cleaned.append(True)

    with pytest.raises(Terminated, match="143"), ended_by_sigterm():
        work()
    assert cleaned == [True]
    assert signal.getsignal(signal.SIGTERM) == before
