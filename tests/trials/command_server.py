"""Runs command lines, each in a process of its own that costs no start-up.

``python -m trials.command_server`` reads one call per line of standard input, as JSON, and answers
with one line each. PyTorch is loaded once; every call runs in a fork with limits.
"""

import contextlib
import json
import os
import signal
import subprocess
import sys
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace

from children import in_child

TESTS = Path(__file__).parents[1]


@contextlib.contextmanager
def commands() -> Iterator[Callable[..., SimpleNamespace]]:
    """A server for as long as the block runs, and the function that calls it."""
    with subprocess.Popen(
        [sys.executable, "-m", "trials.command_server"],
        cwd=TESTS,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env=os.environ | {"DIFFATTN_DEBUG": "", "PYTHONUTF8": "1"},  # errors as a user sees them
    ) as server:

        def call(*arguments, cwd, seconds=60, **environment):
            """Run ``diffattn``: exit status or minus the signal, and what it wrote."""
            order = {"arguments": [*map(str, arguments)], "cwd": str(cwd), "seconds": seconds}
            server.stdin.write(json.dumps(order | {"environment": environment}) + "\n")
            server.stdin.flush()
            return SimpleNamespace(**json.loads(server.stdout.readline()))

        try:
            yield call
        finally:
            server.communicate()


def _serve() -> None:
    """Answer until standard input ends."""
    import torch.distributed  # noqa: F401  loaded here, so that no fork has to

    from diffattn.lab.evaluation.catalog import PROTOCOLS
    from diffattn.lab.evaluation.registry import protocol_class

    for name in PROTOCOLS:
        protocol_class(name)
    for line in sys.stdin:
        print(json.dumps(_run(json.loads(line))), flush=True)


def _run(order: dict) -> dict:
    """One call in a fork."""
    out, err = (Path(order["cwd"], name) for name in (".stdout", ".stderr"))

    def call():
        for number, path in enumerate((Path(os.devnull), out, err)):
            os.dup2(os.open(path, os.O_RDWR | os.O_CREAT | os.O_TRUNC), number)
        os.chdir(order["cwd"])
        os.environ.update(order["environment"])
        status = _main(["diffattn", *order["arguments"]])
        sys.stdout.flush()
        sys.stderr.flush()
        return status

    kind, value = in_child(call, seconds=order["seconds"])
    written = {"out": out.read_text(errors="replace"), "err": err.read_text(errors="replace")}
    out.unlink()
    err.unlink()
    return written | {"status": value if kind == "done" else -getattr(signal, value)}


def _main(arguments: list[str]) -> int:
    """The command in this process; its exit status."""
    from diffattn.lab.cli.app import main

    sys.argv = arguments
    try:
        main()
    except SystemExit as end:
        return end.code if isinstance(end.code, int) else int(end.code is not None)
    except BaseException:
        traceback.print_exc()
        return 1
    return 0


if __name__ == "__main__":
    _serve()
