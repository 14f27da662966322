"""Training runs that are interrupted and continued, and what they must equal then."""

import pytest

from children import launched
from diffattn.lab.training.run import train

SAME = ("metrics.jsonl", "results.json", "model/model.safetensors")


class Interruption(BaseException):
    """As a Ctrl-C or a kill."""


def interrupt_at(last):
    def on_progress(step, loss):
        if step == last:
            raise Interruption

    return on_progress


def stop(config, data, folder, step):
    with pytest.raises(Interruption):
        train(config, data, folder, on_progress=interrupt_at(step))


def stop_together(processes, config, data, folder, step):
    def run():
        train(config, data, folder, on_progress=interrupt_at(step))

    first, *_ = launched(processes, run)
    assert first[1][0][0] == "Interruption", first


def steps_of(config, data, folder, **options):
    """Train; returns the steps that this call made."""
    steps = []
    train(config, data, folder, on_progress=lambda step, loss: steps.append(step), **options)
    return steps


def stop_and_continue(config, data, folder, step, between=lambda checkpoints: None):
    """Interrupt a run at a step, do something to its checkpoints, and continue it.

    Returns the steps of the second call.
    """
    stop(config, data, folder, step)
    assert not (folder / "results.json").exists()
    between(folder / "checkpoints")
    return steps_of(config, data, folder)


def assert_same_files(folder, expected, names=SAME):
    for name in names:
        assert (folder / name).read_bytes() == (expected / name).read_bytes(), name


def assert_same_run(folder, expected):
    assert_same_files(folder, expected)
    assert not (folder / "checkpoints").exists()
