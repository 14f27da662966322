"""A claim of a paper, and the effect that is measured."""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from diffattn.lab.report.claims.commands import Commands
from diffattn.lab.report.claims.records import ClaimRecords
from diffattn.lab.report.page.wording import type_name
from diffattn.lab.stats.intervals import mean_interval

NO_CONTROL = "the record holds no control"
"""Reason why a better loss says nothing: no control could share it."""
_LARGEST_EXPONENT = 700.0
"""Keeps powers finite."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Measured:
    """The effect that a claim is about."""

    effect: float
    low: float | None
    """Of the interval, or of the range of all cases; ``None`` for one seed."""
    high: float | None
    n: int
    unit: str = "seeds"
    """The noun that ``n`` counts."""
    uninformative: str = ""
    """Why the effect says nothing about the claim; empty if it does."""
    note: str = ""
    """The conditions of the measurement."""
    digits: int = 3
    """Decimals that mean something."""

    @property
    def count(self) -> str:
        """The number of seeds or cases."""
        return f"{self.n} {self.unit.removesuffix('s') if self.n == 1 else self.unit}"


Measure = Callable[[ClaimRecords], Measured | None]
"""Reads the effect from the records; ``None`` if they lack it."""


@dataclass(frozen=True, kw_only=True)
class ClaimMeasure:
    """How a claim is measured, and where its record lies."""

    commands: Commands
    record: str
    """Folder of the record under the repository."""
    protocol: str = ""
    """The protocol whose results the record holds; empty for other records."""
    measure: Measure


@dataclass(frozen=True, kw_only=True)
class Claim(ClaimMeasure):
    """One claim of a paper, in the words of its entry in ``papers.json``."""

    id: str
    source: str
    says: str
    effect: str


def measure_row(row: Mapping[str, Any], **more: Any) -> Measured:
    """Read the mean and interval of recorded differences by seed.

    Args:
        row: With ``values``, ``mean``, ``low`` and ``high``.
        more: Further fields of :class:`Measured`.
    """
    ends = {key: row[key] for key in ("low", "high")}
    return Measured(effect=row["mean"], **ends, n=len(row["values"]), **more)


def measure_differences(values: Sequence[float], **more: Any) -> Measured:
    """Measure differences by seed."""
    interval = mean_interval(values)
    ends = {"mean": interval.mean, "low": interval.low, "high": interval.high}
    return measure_row({"values": values} | ends, **more)


def name_controls(controls: Iterable[str]) -> str:
    """Name the controls that the model does not beat; empty if it beats all."""
    names = [type_name(control) for control in controls]
    return f"not shown to do better than controls: {', '.join(names)}" if names else ""


def as_ratio(logarithm: Measured) -> Measured:
    """Turn a measured logarithm into the ratio."""
    low, high = logarithm.low, logarithm.high
    return replace(
        logarithm,
        effect=_power(logarithm.effect),
        low=None if low is None else _power(low),
        high=None if high is None else _power(high),
    )


def _power(exponent: float) -> float:
    return math.exp(min(exponent, _LARGEST_EXPONENT))
