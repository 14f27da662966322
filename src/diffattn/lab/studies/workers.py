"""Train runs side by side in worker processes, each with one thread."""

import contextlib
import json
import os
import queue
import subprocess
import sys
import threading
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import groupby
from pathlib import Path
from typing import Any

import torch

from diffattn.errors import ConfigError, DiffAttnError
from diffattn.lab.records.lock import LOCK
from diffattn.lab.studies.study import OnProgress, PlannedRun
from diffattn.lab.studies.worker import job
from diffattn.lab.training.monitoring.termination import ended_by_sigterm
from diffattn.lab.training.prepare import PreparedData

_ENVIRONMENT = {"OMP_NUM_THREADS": "1", "TOKENIZERS_PARALLELISM": "false"}
_ALLOCATOR = {"MALLOC_TRIM_THRESHOLD_": str(2**31 - 1), "MALLOC_MMAP_THRESHOLD_": str(2**25)}
"""Have glibc keep the memory that a step frees: fresh pages would cost a tenth of a step."""


def worker_count(workers: int | None) -> int:
    """Number of processes. Default: one per GPU, or one per CPU core but at most 2."""
    if workers is None:
        return torch.cuda.device_count() or min(2, os.cpu_count() or 1)
    if workers < 1:
        raise ConfigError(f"reproduce: workers must be 1 or more, got {workers}.")
    return workers


def visible_devices() -> list[str]:
    """GPUs that this process may use, as ``CUDA_VISIBLE_DEVICES`` names them."""
    count = torch.cuda.device_count()
    named = os.environ.get("CUDA_VISIBLE_DEVICES")
    return (named.split(",") if named else [str(idx) for idx in range(count)])[:count]


def unfinished(runs: Sequence[PlannedRun], folder: Path) -> list[PlannedRun]:
    """The runs that are not done."""
    return [x for x in runs if not is_done(folder / x.config.name)]


def is_done(run: Path) -> bool:
    """Whether a run directory has results and no leftovers of a killed process."""
    left = (run / name for name in ("checkpoints", LOCK))
    return (run / "results.json").exists() and not any(path.exists() for path in left)


def train_runs(
    runs: Sequence[PlannedRun],
    data: Path | None,
    folder: Path,
    *,
    workers: int,
    on_progress: OnProgress,
    short: bool = False,
) -> None:
    """Train the runs, ``workers`` at a time.

    If one run fails, the runs in progress are finished, and no further run starts.

    Args:
        data: Folder of the prepared tokens; ``None`` for recall tasks.
        folder: Folder of the run directories and of the logs ``<name>.log``.
        short: Whether a process makes several runs. Outside Linux the recorded peak memory then
            includes its earlier runs.
    """
    folder.mkdir(parents=True, exist_ok=True)
    # The runs of each seed by falling FLOPs, so that all cores end at about the same time.
    longest_first = [
        run
        for _, of_seed in groupby(runs, key=lambda run: run.config.train.seed)
        for run in sorted(of_seed, key=lambda run: -run.facts["flops_difference"])
    ]
    pool = _Pool(longest_first, data, folder, on_progress, short)
    try:
        with ended_by_sigterm():
            pool.run(workers)
    finally:
        pool.end()
    if pool.failures:
        raise DiffAttnError(pool.failures[0])


def run_here(
    runs: Sequence[PlannedRun], data: PreparedData | None, folder: Path, *, on_progress: OnProgress
) -> None:
    """Train one run after another in this process, on one thread as a worker would."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        for run in runs:
            name = run.config.name

            def show_step(step: int, loss: float | None, name: str = name) -> None:
                on_progress(name, {"step": step, "loss": loss})

            def show_message(line: str, name: str = name) -> None:
                on_progress(name, {"message": line})

            run.train(data, folder / name, on_progress=show_step, on_message=show_message)
            on_progress(name, {"done": True})
    finally:
        torch.set_num_threads(threads)


_Events = queue.Queue[tuple["_Worker", dict[str, Any]]]


@dataclass(eq=False, slots=True)
class _Worker:
    process: "subprocess.Popen[str]"
    log: Path
    device: str | None
    """The only GPU that the process sees; ``None`` without GPUs."""
    run: str = ""

    @classmethod
    def start(cls, log: Path, events: "_Events", device: str | None) -> "_Worker":
        devices = {} if device is None else {"CUDA_VISIBLE_DEVICES": device}
        with log.open("w", encoding="utf-8") as file:
            process = subprocess.Popen(
                [sys.executable, "-m", "diffattn.lab.studies.worker"],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=file,
                text=True,
                env=_ALLOCATOR | os.environ | _ENVIRONMENT | devices,
                start_new_session=True,  # Ctrl-C reaches only this process, which ends the workers
            )
        worker = cls(process, log, device)

        def listen() -> None:
            assert process.stdout is not None
            with process.stdout:
                for line in process.stdout:
                    with contextlib.suppress(json.JSONDecodeError):  # half a line, as it was killed
                        events.put((worker, json.loads(line)))
            events.put((worker, {"exit": process.wait()}))

        threading.Thread(target=listen, daemon=True).start()
        return worker

    def give(self, run: PlannedRun, data: Path | None, folder: Path) -> None:
        """Send the next run. Standard input stays open: closing it would end the worker."""
        self.run = run.config.name
        assert self.process.stdin is not None
        with contextlib.suppress(BrokenPipeError):  # it has died; ``listen`` reports its exit
            self.process.stdin.write(job(run, data, folder / self.run) + "\n")
            self.process.stdin.flush()

    def hang_up(self) -> None:
        assert self.process.stdin is not None
        with contextlib.suppress(BrokenPipeError):
            self.process.stdin.close()


@dataclass(slots=True)
class _Pool:
    waiting: list[PlannedRun]
    data: Path | None
    folder: Path
    on_progress: OnProgress
    short: bool
    devices: list[str] = field(default_factory=visible_devices)
    events: _Events = field(default_factory=queue.Queue)
    active: list[_Worker] = field(default_factory=list)
    failures: list[str] = field(default_factory=list)

    def run(self, workers: int) -> None:
        """Start workers until no run waits or a run has failed; wait for all started workers."""
        while self.active or (self.waiting and not self.failures):
            while self.waiting and len(self.active) < workers and not self.failures:
                run = self.waiting.pop(0)
                log = self.folder / f"{run.config.name}.log"
                self.active.append(_Worker.start(log, self.events, self.least_used_device()))
                self.active[-1].give(run, self.data, self.folder)
            worker, event = self.events.get()
            if "exit" not in event:
                self._receive(worker, event)
                continue
            worker.hang_up()
            self.active.remove(worker)
            if (status := event["exit"]) != 0 and not self.failures:
                self.failures.append(
                    f"{worker.run}: the run must end by itself, got exit status {status}. "
                    f"Its log: {worker.log}"
                )

    def least_used_device(self) -> str | None:
        """The GPU for the next worker; ``None`` without GPUs."""
        used = [worker.device for worker in self.active]
        return min(self.devices, key=used.count, default=None)

    def end(self) -> None:
        """Terminate the remaining workers; each saves a checkpoint first."""
        for worker in self.active:
            worker.process.terminate()
        for worker in self.active:
            worker.process.wait()
            worker.hang_up()

    def _receive(self, worker: _Worker, event: dict[str, Any]) -> None:
        self.on_progress(worker.run, event)
        if "error" in event:
            self.failures.append(event["error"])
        if "done" in event and self.short and self.waiting and not self.failures:
            worker.give(self.waiting.pop(0), self.data, self.folder)
        elif "done" in event:
            worker.hang_up()
