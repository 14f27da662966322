"""The command line as a user calls it, in this process, on a small corpus."""

import contextlib
import gc
import io
import sys
from dataclasses import dataclass

import pytest

from diffattn.lab.cli.app import main
from small_corpus import corpus

__all__ = ["corpus"]


@pytest.fixture(scope="session", autouse=True)
def _imports_are_no_garbage():
    """transformers collects garbage before every run, which is slow with all its modules loaded."""
    gc.collect()
    gc.freeze()
    yield
    gc.unfreeze()


@pytest.fixture(autouse=True)
def _no_terminal(monkeypatch):
    """Workers of pytest-xdist name a width, as if there were a terminal."""
    monkeypatch.delenv("COLUMNS", raising=False)


@dataclass
class Called:
    code: int
    out: str
    err: str


def call(*arguments):
    """Run one command line through ``main``, with its own output streams."""
    out, err, before = io.StringIO(), io.StringIO(), sys.argv
    sys.argv = ["diffattn", *map(str, arguments)]
    try:
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            main()
        code = 0
    except SystemExit as end:
        code = end.code
    finally:
        sys.argv = before
    return Called(code, out.getvalue(), err.getvalue())


@pytest.fixture(scope="session")
def cli():
    """``cli("train", "smoke", ...)`` gives exit code, standard output and standard error."""
    return call


@pytest.fixture
def fails(cli):
    """Run a command that must fail with one line on standard error and nothing on output."""

    def run(*arguments, code):
        called = cli(*arguments)
        assert (called.code, called.out) == (code, ""), called
        lines = called.err.splitlines()
        assert lines[-1].startswith("diffattn: "), called
        assert "Traceback" not in called.err
        return lines[-1]

    return run


@pytest.fixture(scope="session")
def small(corpus):
    """Options that shrink the smoke recipe."""
    settings = (
        f"data.source={corpus}", "data.vocab_size=300", "data.validation_fraction=0.2",
        "model.hidden_size=16", "model.head_dim=4",
        "train.seq_len=32", "train.batch_tokens=64", "train.evaluation_tokens=64",
        "train.num_steps=6", "train.warmup_steps=1", "train.log_every=1", "train.evaluate_every=2",
    )  # fmt: skip
    return tuple(part for setting in settings for part in ("--set", setting))


@pytest.fixture(scope="session")
def trained(small, tmp_path_factory):
    """A run directory of a small DIFF model; read-only."""
    out = tmp_path_factory.mktemp("trained") / "run"
    called = call("train", "smoke", "--attention", "diff", "--out", out, *small)
    assert called.code == 0, called
    return out


@pytest.fixture
def here(monkeypatch):
    """Runs of a study are trained in this process instead of one process each."""

    def run_members(members, data, folder, *, workers, on_progress, short):
        from diffattn.lab.training.prepare import open_data
        from diffattn.lab.training.run import train

        for member in members:
            name = member.config.name

            def show(step, loss, name=name):
                on_progress(name, {"step": step, "loss": loss})

            data_of_run = open_data(data)
            train(member.config, data_of_run, folder / name, facts=member.facts, on_progress=show)
            on_progress(name, {"done": True})

    monkeypatch.setattr("diffattn.lab.studies.workers.run_members", run_members)
