"""Command lines in forks of one fresh process that has loaded the command line and nothing else."""

import json
import os
import subprocess
import sys
from typing import NamedTuple

HEAVY = ("torch", "transformers", "scipy", "plotly")
PROGRAM = f"""
import contextlib, io, json, os, sys
from diffattn.lab.cli.app import main
for arguments in json.load(sys.stdin):
    if os.fork():
        os.wait()
        continue
    out, err, sys.argv = io.StringIO(), io.StringIO(), ["diffattn", *arguments]
    try:
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            main()
    except SystemExit as end:
        loaded = sorted(set({HEAVY!r}) & set(sys.modules))
        lines = err.getvalue().splitlines()
        print(json.dumps([end.code, out.getvalue(), lines, loaded]), flush=True)
    os._exit(0)
"""


class Ended(NamedTuple):
    status: int
    output: str
    errors: list[str]
    loaded: list[str]
    """What of the heavy packages was loaded by then."""


def run_each(*commands, folder=None, **environment):
    """How each list of arguments ends in a working folder."""
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM],
        input=json.dumps(commands), env=os.environ | environment, cwd=folder,
        capture_output=True, encoding="utf-8", check=True,
    )  # fmt: skip
    ended = [Ended(*json.loads(line)) for line in done.stdout.splitlines()]
    assert len(ended) == len(commands), done.stderr
    return ended
