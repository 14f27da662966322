"""Effects from evaluations and benchmarks of models. Pure; ``None`` without a record."""

import math
from collections.abc import Iterator, Mapping, Sequence
from statistics import fmean, median
from typing import Any, Literal

from diffattn.records.results import BenchCase
from diffattn.report.claims.measured import (
    Measure,
    Measured,
    explained_by,
    exponential,
    paired,
)
from diffattn.report.claims.records import ClaimRecords
from diffattn.report.page.runs import BASELINE
from diffattn.report.page.wording import IMITATIONS
from diffattn.stats.intervals import mean_interval


def evaluated(
    protocol: str,
    metric: str,
    variant: str,
    *,
    better: Literal["above", "below"] = "above",
    parts: Sequence[str] = (),
    where: Mapping[str, Any] | None = None,
) -> Measure:
    """A metric of an evaluation, minus the baseline's, by seed of the models.

    Args:
        protocol: Its name.
        metric: Its name, or how it begins; where there are several, their mean.
        variant: Its models are called ``diff-seed0`` and the like; models of one seed are paired.
        better: On which side of 0 the paper sees the difference.
        parts: How names of variants of the protocol begin. Default: all.
        where: What the metric's place must say. Default: headline metrics.
    """

    def measure(records: ClaimRecords) -> Measured | None:
        scores = _scores(records, protocol, metric, parts, where)
        values = _differences(scores, variant, BASELINE)
        if not values:
            return None
        sign = 1 if better == "above" else -1
        why = records.floors.get((protocol, variant), "")
        return paired(values, 0.0, uninformative=why or _explained(scores, variant, values, sign))

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
        logs = {label: math.log(score) for label, score in scores.items() if score > 0}
        values = _differences(logs, variant, BASELINE)
        if not values:
            return None
        return exponential(
            paired(values, 0.0, uninformative=_explained(logs, variant, values, sign=-1))
        )

    return measure


def _scores(
    records: ClaimRecords,
    protocol: str,
    metric: str,
    parts: Sequence[str],
    where: Mapping[str, Any] | None,
) -> dict[str, float]:
    """The mean of the metrics wanted, by label of the model."""
    found: dict[str, list[float]] = {}
    for result in records.evaluations:
        if result.protocol != protocol:
            continue
        if parts and not result.variant.startswith(tuple(parts)):
            continue
        found.setdefault(str(result.model.get("label")), []).extend(
            entry.value
            for entry in result.metrics
            if entry.name.startswith(metric)
            and (
                entry.headline
                if where is None
                else all(entry.where.get(key) == value for key, value in where.items())
            )
        )
    return {label: fmean(values) for label, values in found.items() if values}


def _differences(scores: Mapping[str, float], variant: str, baseline: str) -> list[float]:
    """A variant's scores minus the baseline's, seed by seed."""
    return [
        value - scores[other]
        for label, value in scores.items()
        if label.startswith(f"{variant}-seed")
        and (other := label.replace(variant, baseline, 1)) in scores
    ]


def _explained(
    scores: Mapping[str, float], variant: str, values: Sequence[float], sign: int
) -> str:
    """Which controls a lead is not shown to exceed; empty without a lead."""
    if sign * fmean(values) <= 0:
        return ""
    lows = {
        control: mean_interval([sign * value for value in beyond]).low
        for control in IMITATIONS
        if (beyond := _differences(scores, variant, control))
    }
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
    """Time over another's, side by side: its median over all cases timed, and their range.

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
        values = sorted(_ratios(chosen, contender, against))
        if not values:
            return None
        kinds = sorted({f"{case.device} {case.dtype}" for case in chosen})
        why = "timed on a CPU; the claim is about GPUs" if on_gpu and not with_gpu else ""
        return Measured(
            effect=median(values), low=values[0], high=values[-1], n=len(values), of="cases",
            is_range=True, uninformative=why, note=", ".join(kinds),
        )  # fmt: skip

    return measure


def _ratios(cases: Sequence[BenchCase], contender: str, against: str | None) -> Iterator[float]:
    """One per case: of the fastest contender that fits, its median over the rounds."""
    for case in cases:
        timed = [
            row
            for row in case.rows
            if row.status == "ok" and row.role == "DIFF" and contender in ("", row.contender)
        ]
        base = None if against is None else case.row(against)
        if against is None:
            found = [row.ratio_tc.median for row in timed if row.ratio_tc]
        else:
            found = [
                row.ratio_t.median / base.ratio_t.median
                for row in timed
                if row.ratio_t and base and base.ratio_t
            ]
        if found:
            yield min(found)
