"""Runs side by side, one single-threaded process each."""

import json
import os
import queue
import subprocess
import sys
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from diffattn.errors import DiffAttnError
from diffattn.studies.comparison import Member
from diffattn.studies.worker import job

Events = Callable[[str, dict[str, Any]], None]
"""Called with a run's name and its event: ``step`` and ``loss``, ``done``, or ``error``."""


def run_members(
    members: Sequence[Member], data: Path, folder: Path, *, workers: int, tell: Events
) -> None:
    """Train every member that is not finished, ``workers`` at a time.

    A process per run keeps peak memory and CPU time its own. If one fails the others finish
    what they started, and the next call continues from their checkpoints.

    Args:
        members: The runs.
        data: Folder of the prepared tokens.
        folder: Where the run directories lie, one per member.
        workers: Processes at a time, each with one thread.
        tell: Told what happens.

    Raises:
        DiffAttnError: A run failed; its log is ``<folder>/<name>.log``.
    """
    folder.mkdir(parents=True, exist_ok=True)
    waiting = [m for m in members if not (folder / m.config.name / "results.json").exists()]
    events: queue.Queue[tuple[str, dict[str, Any]]] = queue.Queue()
    active: dict[str, subprocess.Popen[str]] = {}
    failures: list[str] = []
    try:
        while active or (waiting and not failures):
            while waiting and len(active) < workers and not failures:
                member = waiting.pop(0)
                active[member.config.name] = _start(member, data, folder, events)
            name, event = events.get()
            if "exit" not in event:
                tell(name, event)
                if "error" in event:
                    failures.append(event["error"])
                continue
            active.pop(name)
            if event["exit"] != 0 and not failures:
                failures.append(
                    f"{name}: the run must end by itself, got exit status {event['exit']}. "
                    f"Its log: {folder / name}.log"
                )
    finally:
        for process in active.values():
            process.terminate()
        for process in active.values():
            process.wait()
    if failures:
        raise DiffAttnError(failures[0])


def _start(
    member: Member, data: Path, folder: Path, events: "queue.Queue[tuple[str, dict[str, Any]]]"
) -> "subprocess.Popen[str]":
    name = member.config.name
    log = (folder / f"{name}.log").open("w", encoding="utf-8")
    process = subprocess.Popen(
        [sys.executable, "-m", "diffattn.studies.worker"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=log,
        text=True,
        env=os.environ | {"OMP_NUM_THREADS": "1", "TOKENIZERS_PARALLELISM": "false"},
        start_new_session=True,  # Ctrl-C reaches this process alone, which then ends the others
    )
    log.close()
    assert process.stdin is not None
    process.stdin.write(job(member.config, member.facts, data, folder / name))
    process.stdin.close()

    def listen() -> None:
        assert process.stdout is not None
        for line in process.stdout:
            events.put((name, json.loads(line)))
        events.put((name, {"exit": process.wait()}))

    threading.Thread(target=listen, daemon=True).start()
    return process
