"""The effect that a claim is about, and how it is got from paired values."""

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from diffattn.lab.report.claims.records import ClaimRecords
from diffattn.lab.report.page.wording import type_name
from diffattn.lab.stats.intervals import mean_interval
from diffattn.lab.stats.paired import paired_t_test

NO_CONTROL = "the record holds no control"
"""Why a lead that nothing explains away says nothing."""
_MOST = 700.0
"""Of an exponent, so that its power stays finite."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Measured:
    """The effect a claim is about."""

    effect: float
    low: float | None
    high: float | None
    n: int
    of: str = "seeds"
    """What ``n`` counts."""
    seeds: int | None = None
    """Where that is something else."""
    p: float | None = None
    """Two-sided, that the effect is the claim's bound; ``None`` where nothing was tested."""
    is_range: bool = False
    """``low`` and ``high`` are the extremes of all cases, not an interval of confidence."""
    uninformative: str = ""
    """Why the effect says nothing about the claim; empty if it does."""
    note: str = ""
    """What it was measured on."""
    digits: int = 3
    """Decimals that mean something."""

    @property
    def count(self) -> str:
        """Over how many of what, with the note."""
        of = self.of.removesuffix("s") if self.n == 1 else self.of
        return f"{self.n} {of}" + (f" ({self.note})" if self.note else "")


Measure = Callable[[ClaimRecords], Measured | None]


def paired(values: Sequence[float], bound: float, **more: Any) -> Measured:
    """Differences by seed, tested against ``bound``."""
    interval = mean_interval(values)
    p = paired_t_test([value - bound for value in values])
    return Measured(
        effect=interval.mean, low=interval.low, high=interval.high, n=len(values), p=p, **more
    )


def explained_by(controls: Iterable[str]) -> str:
    """Why a lead that is not shown over these controls says nothing; empty without any."""
    names = [type_name(control) for control in controls]
    return f"not shown to do better than controls: {', '.join(names)}" if names else ""


def exponential(of: Measured) -> Measured:
    """Ratios from the logarithms that were compared."""
    effect, low, high = (
        None if end is None else math.exp(min(end, _MOST)) for end in (of.effect, of.low, of.high)
    )
    assert effect is not None
    return Measured(
        effect=effect, low=low, high=high, n=of.n, p=of.p,
        uninformative=of.uninformative, note=of.note,
    )  # fmt: skip
