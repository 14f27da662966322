"""Effects from studies of recall, stability and scaling. Pure; ``None`` without a record."""

import math
from collections.abc import Mapping
from typing import Any

from diffattn.lab.catalog.models import UNIFORM_SECOND
from diffattn.lab.report.claims.measured import NO_CONTROL, Measure, Measured, explained_by, paired
from diffattn.lab.report.claims.records import ClaimRecords
from diffattn.lab.report.page.runs import BASELINE
from diffattn.lab.report.page.wording import listing, plural
from diffattn.lab.stats.intervals import Interval, median_interval
from diffattn.lab.stats.proportions import wilson_interval

_CROSSED = "the median by seed and the log-rank test do not name the same model as sooner"
_EARLIER = "counted before it was asked at which rates both models use their context"


def recall_share(task: str, variant: str) -> Measure:
    """Share of seeds that learn a recall task, minus the baseline's; Fisher's exact test."""

    def measure(records: ClaimRecords) -> Measured | None:
        found = _recall(records, task, variant)
        if found is None:
            return None
        entry, test = found
        a, b = (entry["types"][name] for name in (variant, BASELINE))
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


def recall_steps(task: str, variant: str) -> Measure:
    """Steps until a recall task is learned, minus the baseline's, median by seed; log-rank test.

    A run that did not learn it comes after every other: all steps of the task stand for the
    difference. Who is sooner says the test's direction; where the median says otherwise, neither
    is said to be.
    """

    def measure(records: ClaimRecords) -> Measured | None:
        found = _recall(records, task, variant)
        if found is None:
            return None
        assert records.recall is not None
        entry, test = found
        last = entry["num_steps"]
        sides = (entry["types"][name]["solved_steps"] for name in (variant, BASELINE))
        values = [_later(a, b, last) for a, b in zip(*sides, strict=True)]
        interval = median_interval(values)
        sooner = test["sooner"]
        why = _recall_why_not(entry, "sooner", variant, sooner == variant)
        if sooner and (interval.mean >= 0 if sooner == variant else interval.mean <= 0):
            why = why or _CROSSED
        return Measured(
            effect=interval.mean, low=interval.low, high=interval.high, n=len(values),
            p=test["log_rank"], uninformative=why, digits=0,
        )  # fmt: skip

    return measure


def _later(step: int | None, other: int | None, last: int) -> float:
    """Steps by which the first run learned later."""
    if step is None or other is None:
        return float(last * ((step is None) - (other is None)))
    return float(step - other)


def _recall(
    records: ClaimRecords, task: str, variant: str
) -> tuple[Mapping[str, Any], Mapping[str, Any]] | None:
    entry = None if records.recall is None else records.recall["tasks"].get(task)
    if entry is None:
        return None
    test = next((t for t in entry["tests"] if set(t["types"]) == {variant, BASELINE}), None)
    return None if test is None else (entry, test)


def _recall_why_not(entry: Mapping[str, Any], claim: str, variant: str, leads: bool) -> str:
    """The record's own verdict; a lead that a control explains; or that there is no control."""
    if claim not in entry:
        return NO_CONTROL
    said = entry[claim]
    if said["verdict"] == "uninformative":
        return str(said["sentence"])
    for pair in said.get("pairs", ()):
        explained = pair.get("explained_by")
        sides = (pair.get("first", pair.get("more")), pair.get("later", pair.get("less")))
        if leads and explained and sides == (variant, BASELINE):
            return explained_by(explained)
    return ""


def stability_difference(metric: str, variant: str, baseline: str) -> Measure:
    """A measure of the stability study, mean over the learning rates at which both models are shown
    to attend, minus the baseline's, by seed.

    Whether such a mean says anything, and why not, stands in the record.
    """

    def measure(records: ClaimRecords) -> Measured | None:
        entries = () if records.stability is None else records.stability["differences"]
        for entry in entries:
            found = (entry["type"], entry["baseline"], entry["metric"], entry["learning_rate"])
            if found == (variant, baseline, metric, None):
                rates = listing(f"{rate:g}" for rate in entry.get("rates", ()))
                note = f"rates {rates}" if rates else ""
                why = entry.get("why", _EARLIER)
                return paired(entry["values"], 0.0, uninformative=why, note=note)
        return None

    return measure


def scaling_ratio(axis: str, variant: str) -> Measure:
    """Parameters or tokens over those of the baseline with which it has the same loss, by fits.

    Read where the study reads them. A saving counts only if the control whose second map sees
    nothing is shown to need more than the variant.

    Args:
        axis: ``"parameters"`` or ``"tokens"``.
        variant: Of the study of scaling.
    """

    def measure(records: ClaimRecords) -> Measured | None:
        if records.scaling is None:
            return None
        of, said = records.scaling["axes"][axis], records.scaling["verdict"]["axes"][axis]
        row = _equivalent(of, variant, BASELINE)
        if row is None:
            return None
        fits = [of["types"][name]["fit"] for name in (variant, BASELINE)]
        points = [point for name in (variant, BASELINE) for point in of["types"][name]["points"]]
        seeds = min(len(point["loss"]["values"]) for point in points)
        count = len(of["types"][variant]["points"])
        unit = f"{'sizes' if axis == 'parameters' else 'budgets'} of {plural(seeds, 'seed')}"
        if row["ratio"] is None:
            why = str(row["refused"] or "the record holds no ratio")
            return Measured(effect=math.nan, low=None, high=None, n=0, of=unit, uninformative=why)
        freedom = min(fit["points"] - len(fit["parameters"]) for fit in fits)
        return Measured(
            effect=row["ratio"], low=row["low"], high=row["high"], n=count, of=unit, seeds=seeds,
            p=_p_of_log(row, freedom), uninformative=_scaling_why_not(of, said, variant, row),
        )  # fmt: skip

    return measure


def _equivalent(of: Mapping[str, Any], variant: str, baseline: str) -> Mapping[str, Any] | None:
    if not {variant, baseline} <= set(of["types"]):
        return None
    wanted = (variant, baseline, of["read_at"])
    return next(
        (
            row
            for row in of["equivalents"]
            if (row["type"], row["baseline"], row["point"]) == wanted
        ),
        None,
    )


def _scaling_why_not(
    of: Mapping[str, Any], said: Mapping[str, Any], variant: str, row: Mapping[str, Any]
) -> str:
    if not said["informative"]:
        return str(said["sentence"])
    if row["ratio"] >= 1:
        return ""
    against = _equivalent(of, variant, UNIFORM_SECOND)
    if against is None:
        return NO_CONTROL
    shown = against["high"] is not None and against["high"] < 1
    return "" if shown else explained_by([UNIFORM_SECOND])


def _p_of_log(row: Mapping[str, Any], freedom: int) -> float | None:
    """Of the test that a ratio is 1, from its interval, which is symmetric in the logarithm."""
    low, high, level = row["low"], row["high"], row["level"]
    if low is None or high is None or freedom < 1 or not 0 < low < high:
        return None
    from scipy.special import stdtr, stdtrit

    error = math.log(high / low) / 2 / stdtrit(freedom, (1 + level) / 2)
    return 2 * float(stdtr(freedom, -abs(math.log(row["ratio"])) / error))
