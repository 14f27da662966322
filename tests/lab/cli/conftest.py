"""The command line as a user calls it, in this process, on a small corpus."""

import pytest

from small_corpus import corpus
from trials.commands import in_this_process, run_line
from trials.wrong_calls import SMALL, changed

__all__ = ["corpus"]


@pytest.fixture(autouse=True)
def _no_terminal(monkeypatch):
    """Workers of pytest-xdist name a width, as if there were a terminal."""
    monkeypatch.delenv("COLUMNS", raising=False)


@pytest.fixture(scope="session")
def cli():
    """``cli("train", "smoke", ...)`` gives exit code, standard output and standard error."""
    return run_line


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
    of_run = {"data.source": str(corpus), "train.num_steps": "6", "train.log_every": "1"}
    return changed(SMALL | of_run)


@pytest.fixture(scope="session")
def trained(small, tmp_path_factory):
    """A run directory of a small DIFF model; read-only."""
    out = tmp_path_factory.mktemp("trained") / "run"
    called = run_line("train", "smoke", "--attention", "diff", "--out", out, *small)
    assert called.code == 0, called
    return out


@pytest.fixture
def here(monkeypatch):
    """Runs of a study are trained in this process instead of one process each."""

    monkeypatch.setattr("diffattn.lab.studies.workers.train_runs", in_this_process)
