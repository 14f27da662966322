"""Claims measured by the studies of recall, stability, scaling and gradient flow."""

from functools import partial
from typing import Literal

from diffattn.lab.catalog.models import UNIFORM_SECOND
from diffattn.lab.report.claims.claim import (
    NO_CONTROL,
    Measured,
    measure_nothing,
    measure_row,
    name_controls,
    study_claim,
)
from diffattn.lab.report.claims.records import ClaimRecords
from diffattn.lab.report.page.runs import BASELINE
from diffattn.lab.report.page.wording import listing, plural
from diffattn.lab.stats.power_law import equivalent_at


def recall_steps(records: ClaimRecords, task: str, kind: str) -> Measured | None:
    """Measure steps until a task is learned, minus the baseline's: the median over seeds.

    A lead has a reservation if the interval of "control minus model" does not lie above 0.
    """
    tasks = records.studies.get("recall", {"tasks": {}})["tasks"]
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


def stability_difference(
    records: ClaimRecords, metric: str, kind: str, baseline: str
) -> Measured | None:
    """Measure a quantity of the stability study minus the baseline's, by seed.

    It is a mean over the learning rates at which the study compares the two models. The record says
    whether the mean is informative.
    """
    key = (kind, baseline, metric, None)
    for row in records.studies.get("stability", {"differences": ()})["differences"]:
        if (row["type"], row["baseline"], row["metric"], row["learning_rate"]) == key:
            rates = listing(f"{rate:g}" for rate in row.get("rates", ()))
            note = f"rates {rates}" if rates else ""
            return measure_row(row, uninformative=row["why"], note=note)
    return None


def gradient_factor(records: ClaimRecords, judgement: str) -> Measured | None:
    """Measure the factor, 1 or more, by which a judgement of the study misses equality."""
    for row in records.studies.get("gradient-flow", {"judgements": ()})["judgements"]:
        if row["id"] == judgement:
            if not any(value > 0 for value in row["values"]):
                return measure_nothing(row["why"] or "the record holds no value")
            return measure_row(row, uninformative=row["why"])
    return None


def scaling_ratio(
    records: ClaimRecords, axis: Literal["parameters", "tokens"], kind: str
) -> Measured | None:
    """Measure parameters or tokens, divided by the baseline's at equal loss, from fits.

    A saving counts only if the control with a uniform second map reliably needs more.
    """
    study = records.studies.get("scaling")
    if study is None:
        return None
    results, verdict = study["axes"][axis], study["verdict"]["axes"][axis]
    row = equivalent_at(results, kind, BASELINE)
    if row is None:
        return None
    sides = [results["types"][name]["points"] for name in (kind, BASELINE)]
    seeds = min(len(point["loss"]["values"]) for points in sides for point in points)
    unit = f"{'sizes' if axis == 'parameters' else 'budgets'} of {plural(seeds, 'seed')}"
    if row["ratio"] is None:
        return measure_nothing(row["refused"] or "the record holds no ratio", unit)
    why = ""
    if not verdict["informative"]:
        why = str(verdict["sentence"])
    elif row["ratio"] < 1:
        control = equivalent_at(results, kind, UNIFORM_SECOND)
        if control is None:
            why = NO_CONTROL
        elif control["high"] is None or control["high"] >= 1:
            why = name_controls([UNIFORM_SECOND])
    return Measured(
        effect=row["ratio"],
        low=row["low"],
        high=row["high"],
        n=len(sides[0]),
        unit=unit,
        uninformative=why,
    )


_scaling_claim = partial(study_claim, "scaling", scaling_ratio)
_gradient_claim = partial(study_claim, "gradient-flow", gradient_factor)
_spike_claim = partial(
    study_claim, "stability", stability_difference, kind="diff_v2", baseline="diff"
)

STUDY_MEASURES = {
    "size": _scaling_claim(axis="parameters", kind="diff"),
    "tokens": _scaling_claim(axis="tokens", kind="diff"),
    "shared-parameters": _scaling_claim(axis="parameters", kind="shared_diff"),
    "shared-tokens": _scaling_claim(axis="tokens", kind="shared_diff"),
    "recall-sooner": study_claim("recall", recall_steps, task="noisy_recall", kind="diff"),
    "v2-gradient-spikes": _spike_claim(metric="gradient_spike_share"),
    "v2-loss-spikes": _spike_claim(metric="loss_spike_share"),
    # At the small width the factor is 13: values are small there, and the head norm enlarges them.
    "gradients": _gradient_claim(judgement="level-large-values"),
    "gradients-constant": _gradient_claim(judgement="drift-width"),
    "updates": _gradient_claim(judgement="updates"),
    "head-norm-scale": _gradient_claim(judgement="norm-gain-large-values"),
}
