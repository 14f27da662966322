"""The tutorial from its first line to its last, as a reader runs it."""

import io
import os
import re
import shlex
import shutil
import subprocess
import sys
from contextlib import redirect_stdout
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
BLOCKS = re.findall(
    r"```(python|console)\n(.*?)```",
    (ROOT / "docs" / "start" / "tutorial.md").read_text(encoding="utf-8"),
    flags=re.DOTALL,
)


def write_texts(folder):
    folder.mkdir()
    for index, source in enumerate(sorted((ROOT / "src").rglob("*.py"))):
        shutil.copy(source, folder / f"{index}.txt")


def run_command(line, folder):
    words = shlex.split(line, comments=True)
    assert words[0] == "diffattn"
    environment = os.environ | {"PYTHONPATH": str(ROOT / "src")}
    done = subprocess.run(
        [sys.executable, "-m", *words], cwd=folder, env=environment, capture_output=True, text=True
    )
    assert done.returncode == 0, (line, done.stderr[-2000:])
    return done.stdout


@pytest.mark.scheduled
def test_every_block_in_order(tmp_path):
    write_texts(tmp_path / "my_texts")
    shutil.copy(__file__, tmp_path / "held_out.txt")
    scope = {}
    for kind, block in BLOCKS:
        if kind == "python":
            printed = io.StringIO()
            with redirect_stdout(printed):
                exec(compile(block, "tutorial.md", "exec"), scope)
            promised = re.findall(r"^print\(.*\)  # (.*)$", block, flags=re.MULTILINE)
            assert printed.getvalue().splitlines() == promised
            continue
        for line in block.splitlines():
            assert run_command(line, tmp_path)
    assert (tmp_path / "runs" / "first" / "report.html").is_file()
