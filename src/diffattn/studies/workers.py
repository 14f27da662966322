"""Runs side by side, one single-threaded process each."""

import contextlib
import json
import os
import queue
import subprocess
import sys
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import groupby
from pathlib import Path
from typing import Any, Generic, TypeVar

from diffattn.errors import ConfigError, DiffAttnError
from diffattn.models.twins import Twin
from diffattn.studies.worker import job
from diffattn.training.config import RunConfig
from diffattn.training.monitoring.termination import ended_by_sigterm
from diffattn.training.recall_config import RecallConfig

OnMessage = Callable[[str], None]
OnProgress = Callable[[str, dict[str, Any]], None]
"""Called with a run's name and its event: ``step`` and ``loss``, ``message``, ``done`` or
``error``."""


Config = TypeVar("Config", RunConfig, RecallConfig)


@dataclass(frozen=True, kw_only=True, slots=True)
class Member(Generic[Config]):
    """One run of a study."""

    config: Config
    facts: dict[str, Any]
    """Exact differences to the softmax base: parameters, training FLOPs per token."""

    @classmethod
    def of(cls, config: Config, twin: Twin) -> "Member[Config]":
        """The run of a twin."""
        facts = ("parameter_difference", "flops_difference")
        return cls(config=config, facts={name: getattr(twin, name) for name in facts})


def worker_count(workers: int | None) -> int:
    """Processes side by side: by default one on a GPU, else one per core up to two.

    Raises:
        ConfigError: Fewer than one.
    """
    import torch

    if workers is None:
        return 1 if torch.cuda.is_available() else min(2, os.cpu_count() or 1)
    if workers < 1:
        raise ConfigError(f"reproduce: workers must be 1 or more, got {workers}.")
    return workers


def unfinished(members: Sequence[Member[Config]], folder: Path) -> list[Member[Config]]:
    """The members that are not done: without results, or killed before they had cleaned up."""

    def is_done(run: Path) -> bool:
        return (run / "results.json").exists() and not (run / "checkpoints").exists()

    return [m for m in members if not is_done(folder / m.config.name)]


def run_members(
    members: Sequence[Member[Config]],
    data: Path | None,
    folder: Path,
    *,
    workers: int,
    on_progress: OnProgress,
) -> None:
    """Train the members, ``workers`` at a time.

    A process per run keeps peak memory and CPU time its own. If one fails the others finish
    what they started, and the next call continues from their checkpoints.

    Args:
        members: The runs.
        data: Folder of the prepared tokens; ``None`` for recall tasks, which need none.
        folder: Where the run directories lie, one per member.
        workers: Processes at a time, each with one thread.
        on_progress: Given the name of a run and each of its events.

    Raises:
        DiffAttnError: A run failed; its log is ``<folder>/<name>.log``.
    """
    folder.mkdir(parents=True, exist_ok=True)
    waiting = _longest_first(members)
    events: queue.Queue[tuple[str, dict[str, Any]]] = queue.Queue()
    active: dict[str, subprocess.Popen[str]] = {}
    failures: list[str] = []
    try:
        with ended_by_sigterm():
            while active or (waiting and not failures):
                while waiting and len(active) < workers and not failures:
                    member = waiting.pop(0)
                    active[member.config.name] = _start(member, data, folder, events)
                name, event = events.get()
                if "exit" not in event:
                    on_progress(name, event)
                    if "error" in event:
                        failures.append(event["error"])
                    continue
                _hang_up(active.pop(name))
                if event["exit"] != 0 and not failures:
                    failures.append(
                        f"{name}: the run must end by itself, got exit status {event['exit']}. "
                        f"Its log: {folder / name}.log"
                    )
    finally:
        for process in active.values():
            process.terminate()  # it saves a checkpoint first
        for process in active.values():
            process.wait()
            _hang_up(process)
    if failures:
        raise DiffAttnError(failures[0])


def _longest_first(members: Sequence[Member[Config]]) -> list[Member[Config]]:
    """Within a seed the most arithmetic first, so that no core waits for another at the end."""
    return [
        member
        for _, of_seed in groupby(members, key=lambda member: member.config.train.seed)
        for member in sorted(of_seed, key=lambda member: -member.facts["flops_difference"])
    ]


def run_here(
    members: Sequence[Member[Config]],
    folder: Path,
    train: Callable[..., Any],
    *,
    on_progress: OnProgress,
) -> None:
    """Train one after the other in this process, on one thread as a worker would.

    That saves the start-up of a process per run, which counts where runs are short.

    Args:
        members: The runs.
        folder: Where the run directories lie, one per member.
        train: Called as ``train(config, folder=..., facts=..., on_progress=...)``.
        on_progress: Given the name of a run and each of its events.
    """
    import torch

    def tell(run: str, step: int, loss: float | None) -> None:
        on_progress(run, {"step": step, "loss": loss})

    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        for member in members:
            run = member.config.name
            train(
                member.config, folder=folder / run, facts=member.facts,
                on_progress=partial(tell, run),
            )  # fmt: skip
            on_progress(run, {"done": True})
    finally:
        torch.set_num_threads(threads)


def _start(
    member: Member[Config],
    data: Path | None,
    folder: Path,
    events: "queue.Queue[tuple[str, dict[str, Any]]]",
) -> "subprocess.Popen[str]":
    name = member.config.name
    with (folder / f"{name}.log").open("w", encoding="utf-8") as log:
        process = subprocess.Popen(
            [sys.executable, "-m", "diffattn.studies.worker"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=log,
            text=True,
            env=os.environ | {"OMP_NUM_THREADS": "1", "TOKENIZERS_PARALLELISM": "false"},
            start_new_session=True,  # Ctrl-C reaches this process alone, which then ends the others
        )

    def listen() -> None:
        assert process.stdout is not None
        with process.stdout:
            for line in process.stdout:
                with contextlib.suppress(json.JSONDecodeError):  # half a line of a killed worker
                    events.put((name, json.loads(line)))
        events.put((name, {"exit": process.wait()}))

    threading.Thread(target=listen, daemon=True).start()
    assert process.stdin is not None
    with contextlib.suppress(BrokenPipeError):  # it has died already: its exit says so
        process.stdin.write(job(member.config, member.facts, data, folder / name) + "\n")
        process.stdin.flush()  # and left open: its end tells the worker that nobody waits for it
    return process


def _hang_up(process: "subprocess.Popen[str]") -> None:
    assert process.stdin is not None
    with contextlib.suppress(BrokenPipeError):
        process.stdin.close()
