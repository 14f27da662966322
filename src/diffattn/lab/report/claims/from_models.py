"""Effects from evaluations and benchmarks of models. Pure; ``None`` without a record."""

import math
from collections.abc import Iterator, Mapping, Sequence
from statistics import fmean, median
from typing import Any, Literal, NamedTuple

from diffattn.lab.catalog.models import SIDE_EFFECTS
from diffattn.lab.records.evaluations import Metric
from diffattn.lab.records.results import BenchCase
from diffattn.lab.report.claims.measured import (
    NO_CONTROL,
    Measure,
    Measured,
    explained_by,
    exponential,
    paired,
)
from diffattn.lab.report.claims.records import ClaimRecords
from diffattn.lab.report.page.runs import BASELINE
from diffattn.lab.report.page.wording import plural
from diffattn.lab.stats.intervals import mean_interval


class _Place(NamedTuple):
    """What one number of a result is about."""

    variant: str
    """Of the protocol."""
    metric: str
    where: frozenset[tuple[str, str]]


_Scores = Mapping[str, Mapping[_Place, float]]
"""Label of a model to its numbers."""


def evaluated(
    protocol: str,
    metric: str,
    variant: str,
    *,
    better: Literal["above", "below"] = "above",
    parts: Sequence[str] = (),
    where: Mapping[str, Any] | None = None,
    printed: tuple[str, str] | None = None,
) -> Measure:
    """A metric of an evaluation, minus the baseline's, by seed of the models.

    Args:
        protocol: Its name.
        metric: Its name, or how it begins; where there are several, the mean over those that all
            compared models have.
        variant: Its models are called ``diff-seed0`` and the like; models of one seed are paired.
        better: On which side of 0 the paper sees the difference.
        parts: How names of variants of the protocol begin. Default: all.
        where: What the metric's place must say. Default: headline metrics.
        printed: Key and value of the places that the paper prints: others count only where the
            models have none of these, and the note names them. Default: all places.
    """

    def measure(records: ClaimRecords) -> Measured | None:
        scores = _scores(records, protocol, metric, parts, where)
        sign = 1 if better == "above" else -1
        floor = records.floors.get((protocol, variant), "")
        return _compared(scores, variant, sign, floor=floor, printed=printed)

    return measure


def evaluated_ratio(protocol: str, metric: str, variant: str) -> Measure:
    """A headline metric over the baseline's, by seed of the models: their geometric mean.

    The paper sees it below 1.

    Args:
        protocol: Its name.
        metric: Its name, or how it begins; positive.
        variant: Its models are called ``diff-seed0`` and the like; models of one seed are paired.
    """

    def measure(records: ClaimRecords) -> Measured | None:
        scores = _scores(records, protocol, metric, (), None)
        logs = {
            label: {at: math.log(score) for at, score in of.items() if score > 0}
            for label, of in scores.items()
        }
        found = _compared(logs, variant, sign=-1)
        return None if found is None else exponential(found)

    return measure


def _scores(
    records: ClaimRecords,
    protocol: str,
    metric: str,
    parts: Sequence[str],
    where: Mapping[str, Any] | None,
) -> _Scores:
    """The metrics wanted."""
    found: dict[str, dict[_Place, float]] = {}
    for result in records.evaluations:
        if result.protocol != protocol:
            continue
        if parts and not result.variant.startswith(tuple(parts)):
            continue
        found.setdefault(str(result.model.get("label")), {}).update(
            (_place(result.variant, entry), entry.value)
            for entry in result.metrics
            if entry.name.startswith(metric)
            and (entry.headline if where is None else where.items() <= entry.where.items())
        )
    return found


def _place(variant: str, entry: Metric) -> _Place:
    where = frozenset((key, str(value)) for key, value in entry.where.items())
    return _Place(variant, entry.name, where)


def _compared(
    scores: _Scores,
    variant: str,
    sign: int,
    *,
    floor: str = "",
    printed: tuple[str, str] | None = None,
) -> Measured | None:
    """A variant's numbers minus the baseline's, and what controls say of a lead."""
    pairs = _pairs(scores, variant, BASELINE)
    every = {at for pair in pairs for side in pair for at in side}
    places = wanted = _in_all(pairs)
    note = ""
    if printed is not None and not (wanted := {at for at in places if printed in at.where}):
        others = sorted({value for at in places for key, value in at.where if key == printed[0]})
        wanted, note = places, f"{'; '.join(others)} in place of {printed[1]}"
    elif printed is None and every != places:
        note = f"{len(places)} of {plural(len(every), 'part')}, which all models have"
    alike = {label: {at: of[at] for at in of if at in wanted} for label, of in scores.items()}
    values = _differences(alike, variant, BASELINE)
    if not values:
        return None
    return paired(
        values, 0.0, uninformative=floor or _why_not(alike, variant, values, sign), note=note
    )


def _pairs(
    scores: _Scores, variant: str, baseline: str
) -> list[tuple[Mapping[_Place, float], Mapping[_Place, float]]]:
    """Numbers of a variant and of the baseline, seed by seed."""
    return [
        (of, scores[other])
        for label, of in scores.items()
        if label.startswith(f"{variant}-seed")
        and (other := label.replace(variant, baseline, 1)) in scores
        and of
        and scores[other]
    ]


def _in_all(pairs: Sequence[tuple[Mapping[_Place, float], ...]]) -> set[_Place]:
    """What every model has been asked: a mean over more is of another thing."""
    sides = [set(side) for pair in pairs for side in pair]
    return set.intersection(*sides) if sides else set()


def _differences(scores: _Scores, variant: str, baseline: str) -> list[float]:
    """A variant's mean minus the baseline's, seed by seed, over what all of them were asked."""
    pairs = _pairs(scores, variant, baseline)
    places = _in_all(pairs)
    return [fmean(one[at] - other[at] for at in places) for one, other in pairs if places]


def _why_not(scores: _Scores, variant: str, values: Sequence[float], sign: int) -> str:
    """That there is no control to a lead, or which it is not shown to exceed; empty otherwise."""
    if sign * fmean(values) <= 0:
        return ""
    lows = {
        control: mean_interval([sign * value for value in beyond]).low
        for control in SIDE_EFFECTS
        if (beyond := _differences(scores, variant, control))
    }
    if not lows:
        return NO_CONTROL
    return explained_by(control for control, low in lows.items() if low is None or low <= 0)


def time_ratio(
    contender: str,
    *,
    mode: str,
    suite: str = "models",
    against: str | None = None,
    on_gpu: bool = True,
    also: tuple[str, str] | None = None,
    **shape: Any,
) -> Measure:
    """Time over another's, side by side: its median over all cases timed, and their range; of one
    case that of its rounds.

    Args:
        contender: ``"diff"``, ``"diff_v2"`` or ``"shared_diff"``; any of role DIFF if empty.
        mode: ``"forward"``, ``"forward_backward"`` or ``"decode"``.
        suite: Of ``diffattn bench``.
        against: Another contender. Default: the Transformer by the same technique.
        on_gpu: Whether the claim is about GPUs, so that times of a CPU say nothing about it.
        also: Another suite and mode whose cases count, too.
        **shape: What a case's shape must hold.
    """

    def measure(records: ClaimRecords) -> Measured | None:
        cases = [
            case
            for result in records.benchmarks
            for case in result.cases
            if (case.suite, case.mode) in ((suite, mode), also)
            and shape.items() <= case.shape.items()
        ]
        with_gpu = [case for case in cases if case.device != "cpu"] if on_gpu else []
        chosen = with_gpu or cases
        found = list(_ratios(chosen, contender, against))
        if not found:
            return None
        values = sorted(ratio for _, (ratio, *_) in found)
        low, high = values[0], values[-1]
        if len(found) == 1:  # all that is known of the range is that of its rounds
            _, (_, low, high) = found[0]
        kinds = sorted({f"{case.device} {case.dtype}" for case, _ in found})
        why = "timed on a CPU; the claim is about GPUs" if on_gpu and not with_gpu else ""
        return Measured(
            effect=median(values), low=low, high=high, n=len(values), of="cases",
            is_range=True, uninformative=why, note=", ".join(kinds),
        )  # fmt: skip

    return measure


def _ratios(
    cases: Sequence[BenchCase], contender: str, against: str | None
) -> Iterator[tuple[BenchCase, tuple[float, float, float]]]:
    """One per case that has it, of the fastest contender that fits: its median over the rounds, and
    their extremes, which two ratios to T do not give of one to the other."""
    for case in cases:
        timed = [
            row
            for row in case.rows
            if row.status == "ok" and row.role == "DIFF" and contender in ("", row.contender)
        ]
        if against is None:
            spreads = [row.ratio_tc for row in timed if row.ratio_tc]
            found = [(of.median, of.minimum, of.maximum) for of in spreads]
        else:
            base = case.row(against)
            medians = [
                row.ratio_t.median / base.ratio_t.median
                for row in timed
                if row.ratio_t and base and base.ratio_t
            ]
            found = [(ratio, ratio, ratio) for ratio in medians]
        if found:
            yield case, min(found)
