"""A claim of a paper, and its measured effect."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

from diffattn.lab.report.claims.commands import STUDIES, Commands
from diffattn.lab.report.claims.records import PLACES, ClaimRecords
from diffattn.lab.report.page.wording import type_name

NO_CONTROL = "the record holds no control"
"""Reason why a better loss is uninformative: no control was run that could have it too."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Measured:
    """The measured effect that a claim is about."""

    effect: float
    low: float | None
    """Lower end of the interval, or of the range of all cases; ``None`` for one seed."""
    high: float | None
    n: int
    unit: str = "seeds"
    """The noun that ``n`` counts."""
    uninformative: str = ""
    """Why the effect says nothing about the claim; empty if it is informative."""
    note: str = ""
    digits: int = 3

    @property
    def count(self) -> str:
        """``n`` with its noun, such as ``"3 seeds"``."""
        return f"{self.n} {self.unit.removesuffix('s') if self.n == 1 else self.unit}"


class Claim(NamedTuple):
    """A claim of a paper: how it is measured, and its entry in ``papers.json``."""

    commands: Commands
    record: str
    """Folder of the record under the repository."""
    measure: Callable[[ClaimRecords], Measured | None]
    """Reads the effect from the records; ``None`` if they lack it."""
    protocol: str = ""
    """The protocol whose results the record holds; empty for other records."""
    id: str = ""
    source: str = ""
    says: str = ""
    effect: str = ""


class MeasuredClaim(NamedTuple):
    """A claim and the effect that the records hold; ``None`` if they hold none."""

    claim: Claim
    measured: Measured | None


def study_claim(study: str, measure: Callable[..., Measured | None], /, **options: Any) -> Claim:
    """A claim that a kind of study measures: ``measure(records, **options)`` reads the effect."""
    return Claim(STUDIES[study], PLACES[study], partial(measure, **options))


def measure_row(row: Mapping[str, Any], **more: Any) -> Measured:
    """Read the mean and interval of recorded differences by seed."""
    ends = {key: row[key] for key in ("low", "high")}
    return Measured(effect=row["mean"], **ends, n=len(row["values"]), **more)


def measure_nothing(why: str, unit: str = "seeds") -> Measured:
    """A NaN effect, for a record that has no effect for the reason ``why``."""
    return Measured(effect=float("nan"), low=None, high=None, n=0, unit=unit, uninformative=why)


def name_controls(controls: Iterable[str]) -> str:
    """A sentence that names controls which the model does not beat; empty without controls."""
    names = [type_name(control) for control in controls]
    return f"not shown to do better than controls: {', '.join(names)}" if names else ""
