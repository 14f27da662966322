"""Stages of a measuring session: each in processes of its own, with a limit and a record.

A session on a rented machine may end at any moment. So the record of a stage is written as soon as
the stage ends, however it ends, and a later call goes on behind it.
"""

import math
import os
import re
import signal
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from diffattn.errors import ConfigError, DiffAttnError
from diffattn.files.io import read_json, write_json
from diffattn.lab.records.run import git_state, hardware, package_versions, require_schema

SCHEMA = 1
PASSED, FAILED, OVERRAN, REFUSED = "passed", "failed", "overran", "refused"
STOPPED = "stopped"
"""Outcome of a stage that takes what time is left, and goes on in the next call."""
_TAIL = 4_000  # characters of the log that a record holds
_GRACE, _GRACE_OF_TRAINING = 5.0, 40.0  # seconds from SIGTERM to SIGKILL
_LEAST = 60.0  # seconds that are worth it to begin what takes the time that is left


@dataclass(frozen=True, kw_only=True, slots=True)
class Stage:
    """Commands that run one after another; after one that fails the others still run."""

    name: str
    title: str
    limit_seconds: float
    """Limit of all commands together; then the running one is killed with all its processes."""
    commands: tuple[tuple[str, ...], ...]
    times: tuple[str, ...] = ()
    """Kernels whose time it takes: it is refused where the stage ``judge`` found one wrong."""
    judge: str | None = None
    """Name of the stage whose facts say which kernels are wrong; with ``times`` there is one."""
    facts: Callable[[Path], Mapping[str, Any]] | None = None
    """Read off the session's folder when the commands have ended."""
    objection: Callable[[Path], str | None] | None = None
    """Read off it then too: why the stage failed although its commands did not."""
    table: Path | None = None
    """Record of the tuner, given to every command by ``--table`` if it is there by then."""
    environment: Mapping[str, str] = field(default_factory=dict)
    fills: bool = False
    """Whether it trains as long as there is time, up to its limit, and goes on in the next call."""

    @property
    def grace(self) -> float:
        """Seconds from SIGTERM to SIGKILL."""
        return _GRACE_OF_TRAINING if self.fills else _GRACE


def choose(stages: Sequence[Stage], wanted: str | None) -> list[Stage]:
    """Stages by their numbers, counted from 1, or their names, separated by commas."""
    if wanted is None:
        return list(stages)
    by_key = {str(i): stage for i, stage in enumerate(stages, 1)}
    by_key |= {stage.name: stage for stage in stages}
    keys = [key.strip() for key in wanted.split(",")]
    for key in keys:
        if key not in by_key:
            names = ", ".join(stage.name for stage in stages)
            raise ConfigError(
                f"stages: must be of 1 to {len(stages)} or of {{{names}}}, got {key!r}."
            )
    return [stage for stage in stages if any(by_key[key] is stage for key in keys)]


def with_limits(stages: Sequence[Stage], limits: Sequence[str]) -> list[Stage]:
    """The stages, of which some have other limits: ``STAGE=SECONDS``, by the stage's name."""
    seconds = {}
    for word in limits:
        name, _, number = word.partition("=")
        if name not in {stage.name for stage in stages} or not re.fullmatch(r"0*[1-9]\d*", number):
            names = ", ".join(stage.name for stage in stages)
            raise ConfigError(
                f"limit: must be STAGE=SECONDS with one of {{{names}}}, got {word!r}."
            )
        seconds[name] = float(number)
    return [replace(x, limit_seconds=seconds.get(x.name, x.limit_seconds)) for x in stages]


def run_stages(
    stages: Sequence[Stage],
    out: Path,
    *,
    again: bool = False,
    until: float | None = None,
    commit: str | None = None,
    versions: Mapping[str, str] | None = None,
    machine: Mapping[str, Any] | None = None,
    on_message: Callable[[str], None] = print,
) -> list[dict[str, Any]]:
    """Run stages that have no record yet, and write the record of each as soon as it ends.

    Args:
        out: Folder of the session: ``NAME.json`` and ``NAME.log`` of every stage.
        again: Also run what has a record.
        until: On the clock ``time.monotonic``. The first stage to run whose limit does not fit is
            left for another call, with all behind it. Default: no end.
        commit: Of the code. Default: of the checkout.

    Returns:
        The records of the stages that were come to, read back.
    """
    out.mkdir(parents=True, exist_ok=True)
    head, dirty = git_state()
    common: dict[str, Any] = {"commit": commit or head, "dirty": dirty}
    common["versions"] = {**package_versions(), **(versions or {})}
    common["hardware"] = {**hardware(), **(machine or {})}
    records, ran = list[dict[str, Any]](), False
    for number, stage in enumerate(stages):
        path = out / f"{stage.name}.json"
        record = read_stage(path) if path.exists() else None
        # What was refused has not run.
        if record is not None and not again and record["outcome"] not in (REFUSED, STOPPED):
            on_message(f"{stage.name}: {record['outcome']} on {record['date']}, not run again")
            records.append(record)
            continue
        runs = refusal(stage, out) is None
        left = math.inf if until is None else until - time.monotonic()
        if stage.fills:  # takes the time that is left
            rest = max(_LEAST, left - stage.grace - 1)
            stage = replace(stage, limit_seconds=min(stage.limit_seconds, rest))
        if runs and stage.limit_seconds + stage.grace > left:
            if not ran:
                raise ConfigError(
                    f"within: must leave {stage.limit_seconds + stage.grace:g} s or more for stage "
                    f"{stage.name!r}, got {left:.0f} s."
                )
            names = ", ".join(later.name for later in stages[number:])
            on_message(f"left for another call, no time is left in this one: {names}")
            break
        ran = ran or runs
        write_json(path, _run(stage, out, on_message) | common)
        record = read_stage(path)
        reason = f": {record['reason']}" if record["reason"] else ""
        on_message(f"{stage.name}: {record['outcome']} in {record['seconds']:.0f} s{reason}")
        records.append(record)
    return records


def read_stage(path: Path) -> dict[str, Any]:
    """The record of a stage; raises ``CheckpointError`` if it is missing, damaged or another."""
    record: dict[str, Any] = read_json(path)
    require_schema(record, path, SCHEMA)
    return record


def refusal(stage: Stage, out: Path) -> str | None:
    """Why times of this stage would say nothing: a kernel that is wrong, or not known to be right.

    A judge that was stopped by its limit has still judged what it came to.
    """
    if not stage.times:
        return None
    path = out / f"{stage.judge}.json"
    if not path.exists():
        return f"stage {stage.judge!r} must run before kernels are timed, got no record of it"
    kernels = read_stage(path)["facts"].get("kernels", {})
    for kernel in stage.times:
        counts = kernels.get(kernel, {"passed": 0, "failed": 0})
        if counts["failed"] or not counts["passed"]:
            return (
                f"tests of {kernel!r} must pass before it is timed, got {counts['failed']} failed "
                f"and {counts['passed']} passed"
            )
    return None


def _run(stage: Stage, out: Path, on_message: Callable[[str], None]) -> dict[str, Any]:
    """The record of a stage, but for code and machine.

    ``outcome`` is ``"passed"``, ``"failed"`` (a command's exit status, or an objection),
    ``"overran"``, ``"stopped"`` or ``"refused"``. Commands have ``argv``, ``exit`` (``None``:
    killed at the limit), ``seconds`` and the ``log``'s end. ``facts`` are those that the stage
    read, and ``table``: whether kernels were launched as ``"shipped"`` or ``"tuned"``.
    """
    reason = refusal(stage, out)
    began, done = time.monotonic(), []
    outcome = PASSED
    facts: dict[str, Any] = {}
    date = datetime.now(UTC).isoformat(timespec="seconds")
    if reason is not None:
        outcome = REFUSED
    else:
        on_message(f"{stage.name}: {stage.title}, at most {stage.limit_seconds:.0f} s")
        log = out / f"{stage.name}.log"
        log.unlink(missing_ok=True)
        tuned = () if stage.table is None or not stage.table.exists() else ("--table", stage.table)
        facts["table"] = "tuned" if tuned else "shipped"
        for argv in stage.commands:
            left = stage.limit_seconds - (time.monotonic() - began)
            done.append(_command((*argv, *map(str, tuned)), log, left, stage))
            if done[-1]["exit"] is None:
                outcome = STOPPED if stage.fills else OVERRAN
                reason = f"stopped at its limit of {stage.limit_seconds:g} s"
                break
        wrong = [command for command in done if command["exit"]]
        if wrong and outcome == PASSED:
            outcome = FAILED
            reason = f"{len(wrong)} of {len(stage.commands)} commands failed, see {log.name}"
        if stage.facts is not None:
            facts |= stage.facts(out)
        if outcome == PASSED and stage.objection is not None:
            try:
                reason = stage.objection(out)
            except DiffAttnError as error:  # what it reads is not there, or damaged
                reason = str(error)
            outcome = PASSED if reason is None else FAILED
    return {
        "schema": SCHEMA, "stage": stage.name, "outcome": outcome, "reason": reason,
        "seconds": time.monotonic() - began, "limit_seconds": stage.limit_seconds, "date": date,
        "commands": done, "facts": facts,
    }  # fmt: skip


def _command(argv: Sequence[str], log: Path, seconds: float, stage: Stage) -> dict[str, Any]:
    """Run one command, its output at the end of the log; kill it and its children in time.

    They are a group of their own, to be killed together, in the session of this process: whoever
    ends that ends them too.
    """
    began = time.monotonic()
    status: int | None = None
    with log.open("a", encoding="utf-8") as file:
        file.write(f"$ {' '.join(argv)}\n")
        file.flush()
        start = file.tell()
        if seconds > 0:
            process = subprocess.Popen(
                argv, stdout=file, stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL,
                env=os.environ | stage.environment, process_group=0,
            )  # fmt: skip
            try:
                with suppress(subprocess.TimeoutExpired):
                    status = process.wait(timeout=seconds)
            finally:  # also if the session itself is ended: leave nothing running
                if status is None:
                    _end(process, stage.grace)
    with log.open("rb") as written:
        written.seek(start)
        tail = written.read().decode("utf-8", "replace")[-_TAIL:]
    return {
        "argv": list(argv), "exit": status, "seconds": time.monotonic() - began, "log": tail,
    }  # fmt: skip


def _end(process: subprocess.Popen[bytes], grace: float) -> None:
    """End a process and all of its group: politely, so that it may save, and then for good."""
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGTERM)
    with suppress(subprocess.TimeoutExpired):
        process.wait(grace)
    with suppress(ProcessLookupError):  # also children that outlive their parent
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()
