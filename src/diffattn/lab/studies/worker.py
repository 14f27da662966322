"""A process that trains runs of a study: ``python -m diffattn.lab.studies.worker``.

It reads a job per line from standard input, and writes a JSON line per event to standard output. It
ends when standard input ends, even within a run, because then its parent has ended.
"""

import base64
import json
import os
import pickle
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from queue import SimpleQueue
from typing import TYPE_CHECKING, Any

from diffattn.errors import DiffAttnError
from diffattn.lab.records.lock import sole_writer

if TYPE_CHECKING:  # it loads torch, which an idle worker does not need
    from diffattn.lab.studies.study import PlannedRun


def job(run: "PlannedRun", data: Path | None, folder: Path) -> str:
    """A job as one line of JSON; ``data`` is a folder of packed tokens, none for a recall task."""
    facts: dict[str, Any] = {"name": run.config.name, "num_steps": run.config.train.num_steps}
    facts |= {"data": None if data is None else str(data), "folder": str(folder)}
    return json.dumps(facts | {"planned_run": base64.b64encode(pickle.dumps(run)).decode()})


def main() -> int:
    """Run the jobs on standard input. Returns 0, or 1 if one failed."""
    events = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)  # what a library prints goes to the log, to which the parent sends stderr
    jobs: SimpleQueue[dict[str, Any] | None] = SimpleQueue()
    idle = threading.Event()
    idle.set()
    threading.Thread(target=_read_jobs, args=(jobs, idle), daemon=True).start()

    def send(**event: Any) -> None:
        print(json.dumps(event), file=events, flush=True)

    while (job := jobs.get()) is not None:
        try:
            _train(job, send)
        except DiffAttnError as error:
            send(error=f"{job['name']}: {error}")
            return 1
        except OSError as error:  # a full disk, a folder that may not be written
            send(error=f"{job['name']}: files must be writable, got {error}.")
            return 1
        idle.set()  # before the answer: then the parent may close standard input
        send(done=True)
    return 0


def _train(job: dict[str, Any], send: Callable[..., None]) -> None:
    import torch

    torch.set_num_threads(1)
    last = 0.0

    def on_progress(step: int, loss: float | None) -> None:
        nonlocal last
        if time.monotonic() - last > 0.5 or step == job["num_steps"]:
            last = time.monotonic()
            send(step=step, loss=loss)

    # A worker whose parent was killed may still hold this folder for a moment: wait until it ends.
    with sole_writer(Path(job["folder"]), wait=True):
        pass
    train_run(job, on_progress=on_progress, on_message=lambda line: send(message=line))


def train_run(job: dict[str, Any], **callbacks: Callable[..., None]) -> None:
    """Train the run of one job."""
    from diffattn.lab.training.prepare import open_data

    run: PlannedRun = pickle.loads(base64.b64decode(job["planned_run"]))
    data = None if job["data"] is None else open_data(Path(job["data"]))
    run.train(data, Path(job["folder"]), **callbacks)


def _read_jobs(jobs: "SimpleQueue[dict[str, Any] | None]", idle: threading.Event) -> None:
    # Not sys.stdin: this thread would hold its lock when the interpreter ends.
    with os.fdopen(os.dup(0), encoding="utf-8") as lines:
        for line in lines:
            idle.clear()
            jobs.put(json.loads(line))
    if not idle.is_set():
        os._exit(1)
    jobs.put(None)


if __name__ == "__main__":
    sys.exit(main())
