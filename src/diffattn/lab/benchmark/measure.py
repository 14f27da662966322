"""Measure one case: check every contender, time those that passed in turn, and judge by targets."""

import traceback
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, NamedTuple

import torch

from diffattn.errors import BackendError
from diffattn.lab.benchmark import models
from diffattn.lab.benchmark.checking import device_lost, error_line, problem
from diffattn.lab.benchmark.config import DIFF, OF_MODELS, TC, BenchConfig, Case, T
from diffattn.lab.benchmark.contenders import TWO_CALLS, Contender, operator_contenders
from diffattn.lab.benchmark.memory import peak_memory
from diffattn.lab.benchmark.paged import paged_contenders
from diffattn.lab.benchmark.timing import Timed, Timer, host_time, interleave, ratios, spread
from diffattn.lab.records.results import BenchCase, BenchRow, Spread, Verdict

_LENGTHS = {("cpu", "ops"): (512, 4_096), ("cpu", "decode"): (4_096, 4_096)}
"""Smallest and largest number of tokens (``decode``: cached) to which targets apply; else all."""


class Target(NamedTuple):
    """An upper limit of one quantity of the best DIFF contender of a case."""

    device: str
    suite: str
    mode: str
    quantity: str
    """Time over that of ``"T"``, ``"TC"`` or ``"two calls"``; or ``"memory"``: peak over T's."""
    limit: float
    dtype: str | None = None
    size: str | None = None
    """Name of a model size. Default: all sizes."""
    goal: bool = False

    def __str__(self) -> str:
        quantity = "peak memory" if self.quantity == "memory" else self.mode.replace("_", " + ")
        baseline = "T" if self.quantity == "memory" else self.quantity
        return f"{quantity} at most {self.limit:.3g} × {baseline}"

    def applies(self, case: Case) -> bool:
        """Whether the target is for a case."""
        length = case.shape.get("S", case.shape.get("N"))
        first, last = _LENGTHS.get((self.device, self.suite), (length, length))
        return (
            (self.suite, self.device, self.mode) == (case.suite, case.device, case.mode)
            and self.dtype in (None, case.dtype)
            and self.size in (None, case.shape.get("size"))
            and first <= length <= last
            and case.shape.get("attention") != "v2"
        )


_BOTH = "forward_backward"
TARGETS = (
    Target("cpu", "ops", "forward", "T", 1.05, "float32"),
    Target("cpu", "ops", "forward", "TC", 1.10, "float32"),
    Target("cpu", "ops", _BOTH, "T", 1.05, "float32"),
    Target("cpu", "ops", _BOTH, "TC", 1.10, "float32"),
    Target("cpu", "ops", _BOTH, "T", 0.70, "bfloat16"),
    Target("cpu", "ops", _BOTH, "TC", 1.15, "bfloat16"),
    Target("cpu", "ops", _BOTH, "memory", 1.10, "float32"),
    Target("cpu", "ops", _BOTH, "memory", 1.30, "bfloat16"),
    Target("cpu", "decode", "decode", "T", 1.10),
    Target("cpu", "models", "forward", "T", 1 / 0.98),
    Target("cpu", "models", _BOTH, "T", 1 / 0.98),
    Target("cuda", "ops", "forward", "TC", 1.50),
    Target("cuda", "ops", "backward", "TC", 1.15),
    Target("cuda", "ops", _BOTH, "TC", 1.25),
    Target("cuda", "ops", "forward", "two calls", 0.80),
    Target("cuda", "ops", _BOTH, "two calls", 0.80),
    Target("cuda", "ops", _BOTH, "T", 1.25, goal=True),
    Target("cuda", "decode", "decode", "T", 1.05),
    Target("cuda", "models", _BOTH, "T", 1 / 0.97, size="3b", goal=True),
)


def judge(case: Case, rows: Sequence[BenchRow]) -> list[Verdict]:
    """Verdicts of all targets on every attention type of ``models``, else on the fastest DIFF."""
    verdicts = []
    baseline = next((row for row in rows if row.role == T), None)
    for target in TARGETS:
        if not target.applies(case):
            continue
        known = [
            (row.seconds.median, row.contender, value)
            for row in rows
            if row.role == DIFF and row.seconds
            if (value := _quantity(target.quantity, row, baseline)) is not None
        ]
        if case.suite == "models":
            known = [judged for judged in known if judged[1] != "diffllama"]
        else:
            known = sorted(known, key=lambda judged: judged[0])[:1]
        facts: dict[str, Any] = {"target": str(target), "limit": target.limit, "goal": target.goal}
        verdicts += [Verdict(contender=name, value=value, **facts) for _, name, value in known]
    return verdicts


def _quantity(quantity: str, row: BenchRow, baseline: BenchRow | None) -> float | None:
    if quantity == "memory":
        if baseline is None or not row.peak_bytes or not baseline.peak_bytes:
            return None
        return row.peak_bytes / baseline.peak_bytes
    two_calls = None if row.contender == TWO_CALLS else row.ratio_two_calls
    ratio = {"T": row.ratio_t, "TC": row.ratio_tc, "two calls": two_calls}[quantity]
    return None if ratio is None else ratio.median


@dataclass(kw_only=True)
class _Entry:
    contender: Contender
    status: str = "ok"
    reason: str | None = None
    check: dict[str, Any] | None = None
    peak: dict[str, int | None] = field(default_factory=dict)
    host_seconds: float | None = None


def measure(
    case: Case, config: BenchConfig, *, run: str, timer: Timer, matmul_rate: float | None
) -> BenchCase:
    """Check, time and judge one case; ``matmul_rate`` is of the fastest plain matrix product.

    If a contender raises (compilers raise errors of any class), only this contender ends: its row
    has the error and no number. If measuring memory fails, the row keeps its times.
    """
    gradients = case.mode in ("backward", "forward_backward")
    find = {"paged": paged_contenders}.get(case.suite, operator_contenders)
    contenders = (models.contenders if case.suite in OF_MODELS else find)(case, config.only)
    entries = [_Entry(contender=c) for c in contenders]
    for entry in entries:
        _check(entry, gradients)
    running = {e.contender.name + e.contender.role: e for e in entries if e.status == "ok"}
    timed = {}
    for key, entry in running.items():
        steps = _timed(entry.contender, case.mode)
        try:
            timer.sample(steps, 1)
            timed[key] = steps
        except Exception as error:
            _end(entry, error)
    samples = interleave(
        timed,
        timer,
        rounds=config.rounds,
        seconds=config.seconds,
        on_failure=lambda key, error: _end(running[key], error),
    )
    if case.device == "cuda":
        for key in samples:
            running[key].host_seconds = host_time(timed[key])
    # For models on a CPU, a process for each would take too long.
    if case.mode == "forward_backward" and (case.suite == "ops" or case.device == "cuda"):
        for entry in map(running.__getitem__, samples):
            try:
                entry.peak = peak_memory(case, entry.contender)
            except Exception as error:
                entry.reason = f"memory not measured: {error_line(error)}"
                _free(error)
    rows = _rows(entries, samples, case, matmul_rate)
    return BenchCase(
        suite=case.suite,
        run=run,
        device=case.device,
        dtype=case.dtype,
        mode=case.mode,
        shape=dict(case.shape),
        created=datetime.now(UTC).isoformat(timespec="seconds"),
        matmul_flops_per_second=matmul_rate,
        rows=rows,
        verdicts=judge(case, rows),
    )


def _check(entry: _Entry, gradients: bool) -> None:
    if entry.contender.refusal:
        entry.status, entry.reason = "not run", entry.contender.refusal
        return
    try:
        check = entry.contender.check(gradients)
    except Exception as error:
        _end(entry, error)
        return
    entry.check = {name: value for name, value in check.items() if name != "passed"}
    entry.reason = problem(check)
    if entry.reason:
        entry.status = "failed"


def _end(entry: _Entry, error: Exception) -> None:
    refused = isinstance(error, torch.OutOfMemoryError | BackendError)
    entry.status, entry.reason = "not run" if refused else "failed", error_line(error)
    _free(error)


def _free(error: Exception) -> None:
    """Free GPU memory: the stack frames of the error hold the contender's tensors."""
    traceback.clear_frames(error.__traceback__)
    if torch.cuda.is_initialized() and not device_lost():
        torch.cuda.empty_cache()


def _timed(contender: Contender, mode: str) -> Timed:
    if mode == "backward":
        return Timed(prepare=contender.forward, run=contender.backward)
    if mode == "forward_backward":
        return Timed(run=lambda _: contender.backward(contender.forward()))
    return Timed(run=lambda _: torch.no_grad()(contender.forward)())


def _rows(
    entries: list[_Entry], samples: Mapping[str, list[float]], case: Case, matmul_rate: float | None
) -> list[BenchRow]:
    by_key = {e.contender.name + e.contender.role: e.contender for e in entries}
    # The baseline is the fastest T contender; on a CPU there is only one.
    of_t = [key for key in samples if by_key[key].role == T]
    baseline = min(of_t, key=lambda key: spread(samples[key]).median, default=None)
    # Technique to the key of its first TC.
    of_tc = [key for key in samples if by_key[key].role == TC]
    techniques = {by_key[key].technique: key for key in reversed(of_tc)}

    def over(key: str, other: str | None) -> Spread | None:
        if key not in samples or other is None or other not in samples:
            return None
        return ratios(samples[key], samples[other])

    rows = []
    for key, entry in zip(by_key, entries, strict=True):
        contender, tokens = entry.contender, entry.contender.tokens
        seconds = spread(samples[key]) if key in samples else None
        rate = contender.flops / seconds.median if seconds and contender.flops else None
        technique = None if contender.role == T else techniques.get(contender.technique)
        rows.append(
            BenchRow(
                contender=contender.name,
                role=contender.role,
                backend=contender.backend if seconds else None,
                status=entry.status,
                reason=entry.reason,
                check=entry.check,
                seconds=seconds,
                host_seconds=entry.host_seconds if seconds else None,
                ratio_t=over(key, baseline),
                ratio_tc=over(key, technique),
                ratio_two_calls=over(key, TWO_CALLS + DIFF),
                **entry.peak,
                flops=contender.flops or None,
                flops_per_second=rate,
                share_of_peak=rate / matmul_rate if rate and matmul_rate else None,
                tokens_per_second=tokens / seconds.median if tokens and seconds else None,
                cache_bytes=contender.cache_bytes if seconds else None,
            )
        )
    return sorted(rows, key=lambda row: (T, TC, DIFF).index(row.role))
