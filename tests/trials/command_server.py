"""Runs command lines, each in a process of its own that costs no start-up.

``python command_server.py`` reads one call per line of standard input, as JSON, and answers with
one line each. PyTorch is loaded once; every call runs in a fork, which may abort, eat memory or
hang without harm.
"""

import contextlib
import json
import os
import resource
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

HEADROOM_BYTES = 3 << 30
"""What a call may allocate, besides what is loaded."""


@dataclass(frozen=True, slots=True)
class Ended:
    """How a command ended."""

    status: int
    """Exit status, or minus the signal."""
    out: str
    err: str


@contextlib.contextmanager
def commands() -> Iterator[Callable[..., Ended]]:
    """A server for as long as the block runs, and the function that calls it."""
    with subprocess.Popen(
        [sys.executable, __file__],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env=os.environ | {"DIFFATTN_DEBUG": "", "PYTHONUTF8": "1"},  # errors as a user sees them
    ) as server:

        def call(*arguments: object, cwd: Path, seconds: int = 60, **environment: str) -> Ended:
            """Run ``diffattn`` with arguments; killed after so much processor time."""
            order = {"arguments": [*map(str, arguments)], "cwd": str(cwd), "seconds": seconds}
            server.stdin.write(json.dumps(order | {"environment": environment}) + "\n")
            server.stdin.flush()
            return Ended(**json.loads(server.stdout.readline()))

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
    folder = Path(order["cwd"])
    out, err = folder / ".stdout", folder / ".stderr"
    child = os.fork()
    if child == 0:
        try:
            for path, number in ((out, 1), (err, 2), (Path(os.devnull), 0)):
                os.dup2(os.open(path, os.O_RDWR | os.O_CREAT | os.O_TRUNC), number)
            os._exit(_main(order))
        finally:
            os._exit(99)
    waited = time.monotonic() + 10 * order["seconds"]
    while not (ended := os.waitpid(child, os.WNOHANG))[0]:
        if time.monotonic() > waited:
            os.kill(child, signal.SIGKILL)
        time.sleep(0.002)
    written = [path.read_bytes().decode(errors="replace") for path in (out, err)]
    out.unlink()
    err.unlink()
    status = os.waitstatus_to_exitcode(ended[1])
    return {"status": status, "out": written[0], "err": written[1]}


def _main(order: dict) -> int:
    """The command in this process; its exit status."""
    import traceback

    from diffattn.lab.cli.app import main

    used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (used + HEADROOM_BYTES,) * 2)
    resource.setrlimit(resource.RLIMIT_CPU, (order["seconds"],) * 2)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    os.chdir(order["cwd"])
    os.environ.update(order["environment"])
    sys.argv = ["diffattn", *order["arguments"]]
    try:
        main()
        status = 0
    except SystemExit as end:
        status = end.code if isinstance(end.code, int) else 0 if end.code is None else 1
    except BaseException:
        traceback.print_exc()
        status = 1
    sys.stdout.flush()
    sys.stderr.flush()
    return status


if __name__ == "__main__":
    _serve()
