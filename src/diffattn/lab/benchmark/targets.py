"""The performance targets, in one table, and the verdicts on a measured case.

Sources: on a CPU, prototypes measured in the same way reached these ratios. For GPUs they follow
from counts of matrix products (``docs/reference/numerics.md``). The papers report 9 to 12 % slower
training.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

from diffattn.lab.benchmark.config import DIFF, Case, T
from diffattn.lab.benchmark.contenders import TWO_CALLS
from diffattn.lab.records.results import BenchRow, Verdict

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
    """Verdicts on all targets for the case whose quantity was measured.

    In ``models`` every attention type is judged, except transformers' DiffLlama. In other suites
    only the fastest DIFF contender is judged, among those that have the quantity, such as a TC.
    """
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
