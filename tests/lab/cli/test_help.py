"""The help text is a decision: it changes here or nowhere.

After a wanted change: ``python tests/lab/cli/test_help.py > tests/lab/cli/help.txt``.
"""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import typer

from diffattn.lab.benchmark.config import SCALES

COMMANDS = (
    "", "reproduce", "train", "plan", "pack", "evaluate", "compare", "analyze", "judge", "convert",
    "generate", "inspect", "bench", "fit", "report", "list", "check",
)  # fmt: skip
SNAPSHOT = Path(__file__).with_name("help.txt")
CONSTRAINTS = Path(__file__).parents[3] / "constraints.txt"


def help_text():
    """``--help`` of every command on a terminal of 80 columns."""
    parts = []
    for command in COMMANDS:
        arguments = [*command.split(), "--help"]
        done = subprocess.run(
            [sys.executable, "-m", "diffattn", *arguments],
            capture_output=True,
            encoding="utf-8",
            check=True,
            env=os.environ | {"COLUMNS": "80", "TERM": "dumb", "PYTHONUTF8": "1"},
        )
        assert done.stderr == ""
        parts.append(f"$ diffattn {' '.join(arguments)}\n{done.stdout}")
    return "\n".join(parts)


def test_help_is_what_was_decided():
    pinned = re.search(r"^typer==(.*)$", CONSTRAINTS.read_text(), flags=re.MULTILINE)[1]
    if typer.__version__ != pinned:
        pytest.skip(f"the layout is that of typer {pinned}, got {typer.__version__}")
    assert help_text() == SNAPSHOT.read_text(encoding="utf-8")


def test_every_command_is_in_the_snapshot(cli):
    overview = cli("--help").out
    listed = re.findall(r"^  ([a-z]+)  ", overview.split("Commands:")[1], flags=re.MULTILINE)
    assert sorted(listed) == sorted(command for command in COMMANDS if command)


def test_the_help_names_what_is_accepted(cli):
    assert set(SCALES) <= set(re.findall(r"[a-z]+", cli("bench", "--help").out))
    for command in ("pack", "analyze"):
        assert {"python", "stdlib"} <= set(re.findall(r"[a-z]+", cli(command, "--help").out))


if __name__ == "__main__":
    print(help_text(), end="")
