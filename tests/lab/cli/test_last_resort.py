"""Errors that nobody raised on purpose: one line for the user, everything in a file."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from diffattn.errors import CheckpointError
from diffattn.lab.cli import app


class OutOfMemoryError(RuntimeError):
    """As PyTorch calls its own."""


@pytest.fixture
def raising(cli, monkeypatch, tmp_path):
    """Run ``diffattn list`` with an error in the middle, as a user would see it."""
    monkeypatch.delenv(app.DEBUG)
    monkeypatch.setattr(app.tempfile, "tempdir", str(tmp_path))

    def run(error, *arguments):
        def fail(*_):
            raise error

        monkeypatch.setattr("diffattn.errors.check_known", fail)
        return cli("list", "recipes", *arguments)

    return run


@pytest.mark.parametrize(
    ("error", "message"),
    [
        (ZeroDivisionError("a\nsecond line"), "unexpected ZeroDivisionError: a. The traceback"),
        (MemoryError(), "out of memory. Choose smaller sizes, or a machine with more memory. The"),
        (OutOfMemoryError("CUDA out of memory."), "out of memory (CUDA out of memory.). Choose"),
        (RuntimeError("DefaultCPUAllocator: not enough memory"), "out of memory (DefaultCPUAll"),
        (RecursionError("maximum depth"), "something is nested too deeply to be read (maximum"),
        (AssertionError(), "unexpected AssertionError. The traceback"),
        (KeyError("\udcff"), r"unexpected KeyError: '\udcff'. The traceback"),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, Exception) else "",
)
def test_one_line_names_the_file_with_the_traceback(error, message, raising):
    called = raising(error)
    assert (called.code, called.out) == (1, "")
    (line,) = called.err.splitlines()
    assert line.startswith(f"diffattn: {message}")
    log = Path(re.search(r"The traceback is in (\S+);", line)[1])
    content = log.read_text(encoding="utf-8")
    assert content.startswith("diffattn ")
    assert "'list', 'recipes'" in content
    assert "Traceback (most recent call last)" in content
    assert type(error).__name__ in content


def test_the_file_holds_no_secret(raising, monkeypatch):
    monkeypatch.setenv("SOME_API_KEY", "hunter22")
    monkeypatch.setenv("SOME_TOKENIZERS", "false")  # as the command sets one itself: no secret
    called = raising(ZeroDivisionError("hunter22 was sent, is that false?"), "--json")
    log = Path(re.search(r"The traceback is in (\S+);", called.err)[1])
    assert "hunter22" not in log.read_text() + called.err
    assert "[SOME_API_KEY] was sent, is that false?" in log.read_text()


def test_without_room_for_the_file_the_error_is_still_said_and_shown(raising, monkeypatch):
    monkeypatch.setattr(app.tempfile, "tempdir", "/no/such/folder")
    called = raising(ZeroDivisionError("a"))
    assert called.code == 1
    assert "unexpected ZeroDivisionError: a. The traceback could not be written" in called.err
    assert f"{app.DEBUG}=1 shows it" in called.err
    monkeypatch.setenv(app.DEBUG, "1")
    with pytest.raises(ZeroDivisionError):
        raising(ZeroDivisionError("a"))


def test_an_interruption_is_one_line(raising):
    called = raising(KeyboardInterrupt())
    assert called.code == 130
    assert called.err == "diffattn: stopped.\n"


def test_an_error_may_name_any_bytes_and_a_long_one_keeps_its_end(raising):
    called = raising(CheckpointError("a\udcff" + "x" * 5_000 + ": must be readable"))
    assert called.code == 1
    assert called.err.startswith("diffattn: a\\udcffxxx")
    assert called.err.endswith("x: must be readable\n")
    assert len(called.err) < 2_100


def run(*command, **more):
    return subprocess.run(command, capture_output=True, text=True, check=False, **more)


def test_a_closed_pipe_ends_in_silence():
    code = f"{sys.executable} -m diffattn list protocols | true; echo ${{PIPESTATUS[0]}}"
    done = run("bash", "-c", code)
    assert (done.stdout, done.stderr) == ("1\n", "")


@pytest.mark.parametrize(
    ("encoding", "shown"), [("utf-8", "\\udcff \u03bb"), ("latin-1", "\\udcff \\u03bb")]
)
def test_what_a_terminal_cannot_show_is_spelled_out(encoding, shown):
    code = "from diffattn.lab.cli.app import main; import typer; main.__globals__['app'] = "
    code += r"lambda **_: typer.echo('\udcff \u03bb'); main()"
    environment = os.environ | {"PYTHONIOENCODING": encoding}
    done = run(sys.executable, "-c", code, env=environment, encoding=encoding)
    assert (done.returncode, done.stdout, done.stderr) == (0, f"{shown}\n", "")
