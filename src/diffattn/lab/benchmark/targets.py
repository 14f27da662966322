"""The performance targets, in one table, and how a measured case stands to them.

Sources: the ratios were found feasible on a CPU by prototypes measured in the same way, and for
GPUs follow from counts of matrix products (``docs/reference/numerics.md``);
the papers' own figures are a loss of 9 to 12 % in training.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from diffattn.lab.benchmark.contender_names import DIFF, T
from diffattn.lab.benchmark.contenders import TWO_CALLS
from diffattn.lab.records.results import BenchRow, Spread, Verdict

_MEASURED = "measured prototype"
_COUNTED = "count of matrix products"


@dataclass(frozen=True, kw_only=True, slots=True)
class Target:
    """An upper limit of one quantity of the best DIFF contender of a case."""

    suite: str
    device: str
    mode: str
    quantity: str
    """``"T"``, ``"TC"`` or ``"two calls"`` (times over theirs), or ``"memory"`` (peak over T's)."""
    limit: float
    source: str
    dtype: str | None = None
    """Default: every dtype."""
    lengths: tuple[int, int] | None = None
    """First and last number of tokens (decode: cached tokens) that it speaks of."""
    size: str | None = None
    """Name of a model size. Default: all."""
    goal: bool = False

    def words(self) -> str:
        """For example ``"forward at most 1.05 × T"``."""
        quantity = "peak memory" if self.quantity == "memory" else self.mode.replace("_", " + ")
        baseline = "T" if self.quantity == "memory" else self.quantity
        return f"{quantity} at most {self.limit:.3g} × {baseline}"

    def applies(self, suite: str, device: str, dtype: str, mode: str, shape: Any) -> bool:
        """Whether the case is one that this target speaks of."""
        length = shape.get("S", shape.get("N"))
        return (
            (self.suite, self.device, self.mode) == (suite, device, mode)
            and self.dtype in (None, dtype)
            and self.size in (None, shape.get("size"))
            and (self.lengths is None or self.lengths[0] <= length <= self.lengths[1])
            and shape.get("attention") != "v2"
        )


def _cpu(mode: str, quantity: str, limit: float, dtype: str | None, suite: str = "ops") -> Target:
    lengths = {"ops": (512, 4_096), "decode": (4_096, 4_096)}.get(suite)
    return Target(
        suite=suite,
        device="cpu",
        mode=mode,
        quantity=quantity,
        limit=limit,
        dtype=dtype,
        lengths=lengths,
        source=_MEASURED,
    )


def _cuda(mode: str, quantity: str, limit: float, suite: str = "ops", **more: Any) -> Target:
    return Target(
        suite=suite,
        device="cuda",
        mode=mode,
        quantity=quantity,
        limit=limit,
        source=_COUNTED,
        **more,
    )


_BOTH = "forward_backward"
TARGETS: tuple[Target, ...] = (
    _cpu("forward", "T", 1.05, "float32"),
    _cpu("forward", "TC", 1.10, "float32"),
    _cpu(_BOTH, "T", 1.05, "float32"),
    _cpu(_BOTH, "TC", 1.10, "float32"),
    _cpu(_BOTH, "T", 0.70, "bfloat16"),
    _cpu(_BOTH, "TC", 1.15, "bfloat16"),
    _cpu(_BOTH, "memory", 1.10, "float32"),
    _cpu(_BOTH, "memory", 1.30, "bfloat16"),
    _cpu("decode", "T", 1.10, None, suite="decode"),
    _cpu("forward", "T", 1 / 0.98, None, suite="models"),
    _cpu(_BOTH, "T", 1 / 0.98, None, suite="models"),
    _cuda("forward", "TC", 1.50),
    _cuda("backward", "TC", 1.15),
    _cuda(_BOTH, "TC", 1.25),
    _cuda("forward", "two calls", 0.80),
    _cuda(_BOTH, "two calls", 0.80),
    _cuda(_BOTH, "T", 1.25, goal=True),
    _cuda("decode", "T", 1.05, suite="decode"),
    _cuda(_BOTH, "T", 1 / 0.97, suite="models", size="3b", goal=True),
)


def judge(
    suite: str, device: str, dtype: str, mode: str, shape: Any, rows: Sequence[BenchRow]
) -> list[Verdict]:
    """Every target that speaks of the case, kept or missed.

    Operators are judged by their fastest DIFF contender, against TC by the fastest that has one.
    Models are judged one by one: each of our attention types is a model of its own.

    Args:
        suite: Of the case, likewise the others.
        device: ``"cpu"`` or ``"cuda"``.
        dtype: Name of the dtype.
        mode: What was timed.
        shape: Of the case.
        rows: Every contender.

    Returns:
        One verdict per target and judged contender; none where the quantity was not measured.
    """
    verdicts = []
    for target in TARGETS:
        if not target.applies(suite, device, dtype, mode, shape):
            continue
        read = _QUANTITIES[target.quantity]
        baseline = next((row for row in rows if row.role == T), None)
        known = [
            (row, value)
            for row in rows
            if row.role == DIFF and row.seconds and (value := read(row, baseline)) is not None
        ]
        if suite == "models":
            judged = [(row, value) for row, value in known if row.contender != "diffllama"]
        else:
            judged = sorted(known, key=lambda pair: _seconds(pair[0]))[:1]
        verdicts += [
            Verdict(
                target=target.words(),
                contender=row.contender,
                value=value,
                limit=target.limit,
                goal=target.goal,
            )
            for row, value in judged
        ]
    return verdicts


def _seconds(row: BenchRow) -> float:
    assert row.seconds is not None
    return row.seconds.median


def _median(value: Spread | None) -> float | None:
    return None if value is None else value.median


def _memory(row: BenchRow, baseline: BenchRow | None) -> float | None:
    if baseline is None or not row.peak_bytes or not baseline.peak_bytes:
        return None
    return row.peak_bytes / baseline.peak_bytes


def _two_calls(row: BenchRow, baseline: BenchRow | None) -> float | None:
    return None if row.contender == TWO_CALLS else _median(row.ratio_two_calls)


_QUANTITIES: dict[str, Callable[[BenchRow, BenchRow | None], float | None]] = {
    "T": lambda row, baseline: _median(row.ratio_t),
    "TC": lambda row, baseline: _median(row.ratio_tc),
    "two calls": _two_calls,
    "memory": _memory,
}
