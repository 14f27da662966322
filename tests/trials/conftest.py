"""Language models small enough for many trials, and what the disk held while commands ran."""

import gc
import multiprocessing
from dataclasses import dataclass

import pytest

from language_models import build, save, text, tokenizer
from trials import commands
from trials.commands import Command
from trials.disk import Moment

__all__ = ["build", "text", "tokenizer"]


@dataclass
class Recorded:
    """A command, and the moments of its undisturbed run."""

    command: Command
    events: list[str]
    moments: list[Moment]


@pytest.fixture(scope="session")
def recorded(tmp_path_factory):
    """``recorded("train")``: a command and the moments of its undisturbed run."""
    made: dict[str, Recorded] = {}
    home = tmp_path_factory.mktemp("trials")

    def make(name):
        match name:
            case "judge":
                return commands.judge_command(home, get("evaluate").command)
            case "report":
                return commands.report_command(home, get("evaluate").command)
        return getattr(commands, f"{name}_command")(home)

    def get(name):
        if name not in made:
            command = make(name)
            recorder = command.recorded()
            made[name] = Recorded(command, recorder.events, recorder.moments)
            # transformers collects garbage before every run, which is slow with all it has loaded.
            gc.collect()
            gc.freeze()
        return made[name]

    with commands.small_batches() as patch:
        patch.setattr("diffattn.lab.studies.workers.train_runs", commands.in_this_process)
        yield get
    gc.unfreeze()


@pytest.fixture(scope="session")
def warm():
    """Processes that start with everything loaded."""
    context = multiprocessing.get_context("forkserver")
    loaded = ["cli.app", "evaluation.runner", "training.run"]
    context.set_forkserver_preload(["tokenizers", *(f"diffattn.lab.{name}" for name in loaded)])
    return context


@pytest.fixture
def stub(monkeypatch):
    """Pages without their charts and unflushed, made quickly; undone by ``stub.undo()``."""
    monkeypatch.setattr("plotly.offline.get_plotlyjs", lambda: "/* charts */")
    monkeypatch.setattr("os.fsync", lambda handle: None)
    return monkeypatch


@pytest.fixture(scope="module")
def whole(build, tmp_path_factory):
    """``whole(kind)``: a sound model folder."""
    folders = {}

    def of(kind):
        if kind not in folders:
            folders[kind] = tmp_path_factory.mktemp(kind)
            save(build(kind), folders[kind])
        return folders[kind]

    return of
