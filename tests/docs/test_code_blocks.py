"""Documentation runs: every Python block as printed, every command of ours with known options."""

import re
import shlex
from pathlib import Path

import pytest
import typer

from diffattn.lab.cli.app import app

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("**/*.md"))]
COMMANDS = typer.main.get_command(app)
IMPORTS_ONLY = {"lm_tasks": "needs tasks of the hub", "scaling_out": "runs in two processes"}
"""Pages whose blocks need data or processes that a test lacks: only their imports run."""
PLACEHOLDERS = re.compile(r"\[[^]]*\]|…")
"""Of a synopsis such as ``diffattn bench ops [--scale quick]``."""


def blocks(page):
    """The Python of a page, in order."""
    return re.findall(r"```python\n(.*?)```", page.read_text(encoding="utf-8"), flags=re.DOTALL)


def commands(page):
    """Calls of ``diffattn`` in indented and fenced blocks, without pipes and comments."""
    text = page.read_text(encoding="utf-8").replace("\\\n", " ")
    pattern = r"^(?: {4}|)(?:torchrun .*? -m )?(diffattn [^|>#\n]*)"
    calls = re.findall(pattern, text, flags=re.MULTILINE)
    lines = (part for line in calls for part in line.split("&&"))
    return [line.strip() for line in lines if "`" not in line and not line.rstrip().endswith(".")]


@pytest.mark.parametrize("page", [p for p in PAGES if blocks(p)], ids=lambda p: p.stem)
def test_python_blocks_run_and_print_what_they_promise(page, capsys):
    if page.stem in IMPORTS_ONLY:
        lines = "\n".join(blocks(page)).splitlines()
        exec("\n".join(line for line in lines if re.match(r"(from|import) ", line)), {})
        return
    scope = {}
    for block in blocks(page):
        exec(compile(block, str(page), "exec"), scope)
    promised = [
        line.rsplit("  # ", 1)[1].strip()
        for block in blocks(page)
        for line in block.splitlines()
        if line.startswith("print(")
    ]
    assert capsys.readouterr().out.splitlines() == promised


def test_there_are_commands():
    assert sum(len(commands(page)) for page in PAGES) > 50


@pytest.mark.parametrize(
    ("page", "line"), [(page.stem, line) for page in PAGES for line in commands(page)]
)
def test_commands_and_options_exist(page, line):
    """Parsed as the command itself does, not run."""
    words = shlex.split(PLACEHOLDERS.sub("", line))[1:]
    context = COMMANDS.make_context("diffattn", list(words), resilient_parsing=True)
    if not words or words[0].startswith("-"):
        return
    name, command, rest = COMMANDS.resolve_command(context, words)
    # Values are placeholders in places; an option that is unknown fails all the same.
    known = {option for parameter in command.params for option in parameter.opts}
    used = {word.split("=")[0] for word in rest if word.startswith("--")}
    assert used <= known | {"--help"}, (name, used - known)
