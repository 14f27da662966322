"""Effects from studies of recall and of stability. Pure; ``None`` without a record."""

import math
from collections.abc import Mapping
from typing import Any

from diffattn.report.claims.measured import Measure, Measured, explained_by, exponential, paired
from diffattn.report.claims.records import ClaimRecords
from diffattn.stats.intervals import Interval, mean_interval
from diffattn.stats.proportions import wilson_interval


def recall_share(task: str, variant: str, baseline: str = "softmax") -> Measure:
    """Share of seeds that learn a recall task, minus the baseline's; Fisher's exact test."""

    def measure(records: ClaimRecords) -> Measured | None:
        found = _recall(records, task, variant, baseline)
        if found is None:
            return None
        entry, test = found
        a, b = (entry["types"][name] for name in (variant, baseline))
        p, q = (wilson_interval(side["solved"], side["trials"]) for side in (a, b))
        effect = p.mean - q.mean
        low, high = _newcombe(p, q)
        return Measured(
            effect=effect, low=low, high=high, n=min(a["trials"], b["trials"]),
            p=test["fisher_exact"],
            uninformative=_recall_why_not(entry, "can", variant, effect > 0),
        )  # fmt: skip

    return measure


def _newcombe(p: Interval, q: Interval) -> tuple[float, float]:
    """Newcombe's interval of a difference of shares, from Wilson's of both."""
    assert p.low is not None
    assert p.high is not None
    assert q.low is not None
    assert q.high is not None
    effect = p.mean - q.mean
    return (
        effect - math.hypot(p.mean - p.low, q.high - q.mean),
        effect + math.hypot(p.high - p.mean, q.mean - q.low),
    )


def recall_steps(task: str, variant: str, baseline: str = "softmax") -> Measure:
    """Steps until a recall task is learned, minus the baseline's; log-rank test.

    A run that did not learn it counts with all its steps.
    """

    def measure(records: ClaimRecords) -> Measured | None:
        found = _recall(records, task, variant, baseline)
        if found is None:
            return None
        entry, test = found
        last = entry["num_steps"]
        sides = (entry["types"][name]["solved_steps"] for name in (variant, baseline))
        values = [
            float((last if a is None else a) - (last if b is None else b))
            for a, b in zip(*sides, strict=True)
        ]
        interval = mean_interval(values)
        why = _recall_why_not(entry, "sooner", variant, interval.mean < 0)
        return Measured(
            effect=interval.mean, low=interval.low, high=interval.high, n=len(values),
            p=test["log_rank"], uninformative=why,
        )  # fmt: skip

    return measure


def _recall(
    records: ClaimRecords, task: str, variant: str, baseline: str
) -> tuple[Mapping[str, Any], Mapping[str, Any]] | None:
    entry = None if records.recall is None else records.recall["tasks"].get(task)
    if entry is None:
        return None
    test = next((t for t in entry["tests"] if set(t["types"]) == {variant, baseline}), None)
    return None if test is None else (entry, test)


def _recall_why_not(entry: Mapping[str, Any], claim: str, variant: str, leads: bool) -> str:
    """The record's own verdict; a lead that a control explains; or that there is no control."""
    if claim not in entry:
        return "the record holds no control"
    said = entry[claim]
    if said["verdict"] == "uninformative":
        return str(said["sentence"])
    for pair in said.get("pairs", ()):
        explained = pair.get("explained_by")
        if leads and explained and pair.get("first", pair.get("more")) == variant:
            return explained_by(explained)
    return ""


def stability_difference(metric: str, variant: str, baseline: str) -> Measure:
    """A measure of the stability study, mean over learning rates, minus the baseline's, by seed."""

    def measure(records: ClaimRecords) -> Measured | None:
        entries = () if records.stability is None else records.stability["differences"]
        for entry in entries:
            found = (entry["type"], entry["baseline"], entry["metric"], entry["learning_rate"])
            if found == (variant, baseline, metric, None):
                return paired(entry["values"], 0.0)
        return None

    return measure


def gradient_ratio(variant: str, baseline: str, bound: float) -> Measure:
    """Median gradient norm over the baseline's at the smallest rate, by seed.

    The effect is the size of the logarithm, as a factor from 1 up; tested against ``bound``.
    """

    def measure(records: ClaimRecords) -> Measured | None:
        types = {} if records.stability is None else records.stability["types"]
        if not {variant, baseline} <= set(types):
            return None
        sides = (
            min(types[name]["rates"], key=lambda at: at["learning_rate"])["median_gradient_norms"]
            for name in (variant, baseline)
        )
        pairs = [(a, b) for a, b in zip(*sides, strict=True) if a and b and a > 0 and b > 0]
        if not pairs:
            return None
        return exponential(paired([abs(math.log(a / b)) for a, b in pairs], math.log(bound)))

    return measure
