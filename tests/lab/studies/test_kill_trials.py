"""Processes killed in the middle: nothing is lost, and the end is that of an unbroken study."""

import os
import signal
import subprocess
import sys
import threading
import time

import pytest

from diffattn.errors import DiffAttnError
from diffattn.lab.catalog.models import SWEPT
from diffattn.lab.studies import workers
from diffattn.lab.studies.reproduce import reproduce

pytestmark = pytest.mark.scheduled
NAMES = [f"{name}-seed0" for name in SWEPT]
REPRODUCE = """
import sys, diffattn
diffattn.reproduce('smoke', out=sys.argv[1], settings=sys.argv[2:])
"""


def started(out, settings, stderr=subprocess.DEVNULL):
    """A process of its own group that makes the study."""
    command = [sys.executable, "-c", REPRODUCE, str(out), *settings]
    streams = {"stdout": subprocess.DEVNULL, "stderr": stderr}
    return subprocess.Popen(command, start_new_session=True, **streams)


@pytest.fixture(scope="module")
def longer(settings):
    """Long enough to be hit between two checkpoints."""
    return (*settings, "train.num_steps=400", "train.evaluate_every=20")


@pytest.fixture(scope="module")
def unbroken(longer, tmp_path_factory):
    out = tmp_path_factory.mktemp("unbroken") / "out"
    reproduce("smoke", out=out, settings=longer, on_message=lambda line: None)
    return out


def wait_for(condition):
    """Until there is something, which is returned."""
    for _ in range(30_000):
        if there := condition():
            return there
        time.sleep(0.01)
    raise TimeoutError


def wait_for_checkpoint(runs, name="*"):
    """Until a checkpoint of the run, or of any, is whole, and a moment longer."""
    wait_for(lambda: list(runs.glob(f"{name}/checkpoints/*/trainer_state.json")))
    time.sleep(0.1)


def assert_same_study(out, expected):
    names = ["results.json", "maps.json"]
    for name in NAMES:
        names += [f"runs/{name}/metrics.jsonl", f"runs/{name}/model/model.safetensors"]
        assert not (out / "runs" / name / "checkpoints").exists()
    for name in names:
        assert (out / name).read_bytes() == (expected / name).read_bytes(), name


@pytest.mark.parametrize("victim", ["softmax-seed0", "diff_v2-seed0"])
def test_a_killed_worker(victim, longer, unbroken, tmp_path, monkeypatch):
    out, begun = tmp_path / "out", []
    real = subprocess.Popen

    def spy(*args, **kwargs):
        begun.append(real(*args, **kwargs))
        return begun[-1]

    def kill():
        wait_for_checkpoint(out / "runs", victim)
        begun[-1].kill()  # one at a time: the last is the one at work

    with monkeypatch.context() as patch:
        patch.setattr(workers.subprocess, "Popen", spy)
        killer = threading.Thread(target=kill)
        killer.start()
        with pytest.raises(DiffAttnError, match=f"{victim}: .* got exit status -9"):
            reproduce("smoke", out=out, settings=longer, workers=1, on_message=lambda line: None)
        killer.join()
    assert (out / "runs" / victim / "run.json").exists()
    assert not (out / "results.json").exists()
    reproduce("smoke", out=out, settings=longer, on_message=lambda line: None)
    assert_same_study(out, unbroken)


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM, signal.SIGINT])
def test_a_killed_parent_takes_its_workers_along(number, longer, unbroken, tmp_path):
    out = tmp_path / "out"
    with started(out, longer) as parent:
        wait_for_checkpoint(out / "runs")
        os.kill(parent.pid, number)
        assert parent.wait(timeout=30) != 0
    assert not (out / "results.json").exists()
    reproduce("smoke", out=out, settings=longer, on_message=lambda line: None)
    assert_same_study(out, unbroken)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_workers_of_a_parent_that_is_asked_to_end_save_the_step_in_work(number, settings, tmp_path):
    """With no checkpoint of their own accord before the end."""
    out = tmp_path / "out"
    rare = (*settings, "train.num_steps=4000", "train.evaluate_every=4000", "train.log_every=1")
    with started(out, rare, stderr=subprocess.PIPE) as parent:
        logs = wait_for(
            lambda: [p for p in out.glob("runs/*/metrics.jsonl") if p.stat().st_size > 5000]
        )
        run = logs[0].parent
        assert not list(run.glob("checkpoints/*"))
        os.kill(parent.pid, number)
        message = parent.communicate(timeout=120)[1].decode()
    if number == signal.SIGTERM:
        assert parent.returncode == 143, message
    else:
        assert "KeyboardInterrupt" in message
    (saved,) = run.glob("checkpoints/*/manifest.json")
    assert 0 < int(saved.parent.name.split("-")[1]) < 4000
