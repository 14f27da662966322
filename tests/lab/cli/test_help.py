"""The help text is a decision: it changes here or nowhere.

After a wanted change: ``PYTHONPATH=src:tests python -m lab.cli.test_help > tests/lab/cli/help.txt``
"""

import re
from pathlib import Path

import pytest
import typer

from lab.cli.forks import run_each

SNAPSHOT = Path(__file__).with_name("help.txt")
CONSTRAINTS = Path(__file__).parents[3] / "constraints.txt"


def help_text():
    """``--help`` of every command on a terminal of 80 columns; it needs nothing heavy."""
    terminal = {"COLUMNS": "80", "TERM": "dumb", "PYTHONUTF8": "1"}
    (overview,) = run_each(["--help"], **terminal)
    names = re.findall(r"^  ([a-z]+)  ", overview.output.split("Commands:")[1], flags=re.MULTILINE)
    calls = [["--help"], *([name, "--help"] for name in names)]
    parts = []
    for call, ended in zip(calls, run_each(*calls, **terminal), strict=True):
        assert (ended.status, ended.errors, ended.loaded) == (0, [], []), call
        parts.append(f"$ diffattn {' '.join(call)}\n{ended.output}")
    return "\n".join(parts)


def test_help_is_what_was_decided():
    pinned = re.search(r"^typer==(.*)$", CONSTRAINTS.read_text(), flags=re.MULTILINE)[1]
    if typer.__version__ != pinned:
        pytest.skip(f"the layout is that of typer {pinned}, got {typer.__version__}")
    assert help_text() == SNAPSHOT.read_text(encoding="utf-8")


if __name__ == "__main__":
    print(help_text(), end="")
