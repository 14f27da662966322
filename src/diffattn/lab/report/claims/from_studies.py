"""Claims measured by the studies of recall, stability and scaling."""

import math
from collections.abc import Mapping
from typing import Any, Literal

from diffattn.lab.catalog.models import UNIFORM_SECOND
from diffattn.lab.report.claims import commands
from diffattn.lab.report.claims.claim import (
    NO_CONTROL,
    ClaimMeasure,
    Measure,
    Measured,
    measure_row,
    name_controls,
)
from diffattn.lab.report.claims.records import PLACES, ClaimRecords
from diffattn.lab.report.page.runs import BASELINE
from diffattn.lab.report.page.wording import listing, plural

_Axis = Literal["parameters", "tokens"]
_OLDER_RECORD = "counted before it was asked at which rates both models use their context"


def recall_steps(task: str, kind: str) -> Measure:
    """Measure steps until a task is learned minus the baseline's: the median by seed.

    A lead has a reservation if the interval of a control minus the model does not lie above 0.
    """

    def measure(records: ClaimRecords) -> Measured | None:
        tasks = {} if records.recall is None else records.recall["tasks"]
        entry = tasks.get(task, {"differences": ()})
        rows = {(row["variant"], row["baseline"]): row for row in entry["differences"]}
        if (lead := rows.get((kind, BASELINE))) is None:
            return None
        equal = [
            control
            for (control, baseline), row in rows.items()
            if baseline == kind and (row["low"] is None or row["low"] <= 0)
        ]
        why = entry["uninformative"] or (name_controls(equal) if lead["mean"] < 0 else "")
        return measure_row(lead, uninformative=why, digits=0)

    return measure


def stability_difference(metric: str, kind: str, baseline: str) -> Measure:
    """Measure a quantity of the stability study minus the baseline's, by seed.

    It is the mean over the learning rates at which both models are shown to attend. The record
    says whether it is informative.
    """

    def measure(records: ClaimRecords) -> Measured | None:
        rows = () if records.stability is None else records.stability["differences"]
        key = (kind, baseline, metric, None)
        for row in rows:
            if (row["type"], row["baseline"], row["metric"], row["learning_rate"]) == key:
                rates = listing(f"{rate:g}" for rate in row.get("rates", ()))
                note = f"rates {rates}" if rates else ""
                why = row.get("why", _OLDER_RECORD)
                return measure_row(row, uninformative=why, note=note)
        return None

    return measure


def scaling_ratio(axis: _Axis, kind: str) -> Measure:
    """Measure parameters or tokens over those of the baseline at equal loss, by fits.

    A saving counts only if the control whose second map sees nothing is shown to need more.

    Args:
        axis: The quantity.
        kind: Of the study of scaling.
    """

    def measure(records: ClaimRecords) -> Measured | None:
        if records.scaling is None:
            return None
        results, verdict = records.scaling["axes"][axis], records.scaling["verdict"]["axes"][axis]
        row = _equivalent(results, kind, BASELINE)
        if row is None:
            return None
        sides = [results["types"][name] for name in (kind, BASELINE)]
        seeds = min(len(point["loss"]["values"]) for side in sides for point in side["points"])
        unit = f"{'sizes' if axis == 'parameters' else 'budgets'} of {plural(seeds, 'seed')}"
        if row["ratio"] is None:
            why = str(row["refused"] or "the record holds no ratio")
            return Measured(effect=math.nan, low=None, high=None, n=0, unit=unit, uninformative=why)
        return Measured(
            effect=row["ratio"],
            low=row["low"],
            high=row["high"],
            n=len(sides[0]["points"]),
            unit=unit,
            uninformative=_explain_scaling(results, verdict, kind, row),
        )

    return measure


def _equivalent(results: Mapping[str, Any], kind: str, baseline: str) -> Mapping[str, Any] | None:
    if not {kind, baseline} <= set(results["types"]):
        return None
    key = (kind, baseline, results["read_at"])
    rows = results["equivalents"]
    return next((row for row in rows if (row["type"], row["baseline"], row["point"]) == key), None)


def _explain_scaling(
    results: Mapping[str, Any], verdict: Mapping[str, Any], kind: str, row: Mapping[str, Any]
) -> str:
    if not verdict["informative"]:
        return str(verdict["sentence"])
    if row["ratio"] >= 1:
        return ""
    control = _equivalent(results, kind, UNIFORM_SECOND)
    if control is None:
        return NO_CONTROL
    is_exceeded = control["high"] is not None and control["high"] < 1
    return "" if is_exceeded else name_controls([UNIFORM_SECOND])


def _scaling_claim(axis: _Axis, kind: str) -> ClaimMeasure:
    return ClaimMeasure(
        commands=commands.SCALING,
        record=PLACES["scaling"],
        measure=scaling_ratio(axis, kind),
    )


def _spike_claim(metric: str) -> ClaimMeasure:
    return ClaimMeasure(
        commands=commands.STABILITY,
        record=PLACES["stability"],
        measure=stability_difference(metric, "diff_v2", "diff"),
    )


STUDY_MEASURES = {
    "size": _scaling_claim("parameters", "diff"),
    "tokens": _scaling_claim("tokens", "diff"),
    "shared-parameters": _scaling_claim("parameters", "shared_diff"),
    "shared-tokens": _scaling_claim("tokens", "shared_diff"),
    "recall-sooner": ClaimMeasure(
        commands=commands.RECALL,
        record=PLACES["recall"],
        measure=recall_steps("noisy_recall", "diff"),
    ),
    "v2-gradient-spikes": _spike_claim("gradient_spike_share"),
    "v2-loss-spikes": _spike_claim("loss_spike_share"),
}
