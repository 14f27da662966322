"""Claims measured by studies: of text, recall, stability, scaling and gradient flow."""

from collections.abc import Mapping
from functools import partial
from typing import Any, Literal

from diffattn.lab.catalog.models import (
    BASELINE,
    FEW,
    SIDE_EFFECTS,
    TYPES,
    UNIFORM_SECOND,
    WITHOUT_NORM,
    own_side_effects,
)
from diffattn.lab.report.claims.claim import (
    NO_CONTROL,
    Claim,
    Measured,
    measure_nothing,
    measure_row,
    name_controls,
    study_claim,
)
from diffattn.lab.report.claims.records import ClaimRecords
from diffattn.lab.report.page.phase import explain_divergence, explain_gap
from diffattn.lab.report.page.wording import listing, plural
from diffattn.lab.stats.intervals import mean_interval
from diffattn.lab.stats.power_law import equivalent_at


def recall_steps(records: ClaimRecords, task: str, kind: str) -> Measured | None:
    """Measure steps until a task is learned, minus the baseline's: the median over seeds."""
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
    """Measure a quantity minus the baseline's, by seed: the mean over the compared rates."""
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


_Study = Literal["text", "ablations", "rank"]


def loss_difference(
    records: ClaimRecords,
    variant: str,
    baseline: str,
    *,
    part: str | None = None,
    study: _Study = "text",
) -> Measured | None:
    """Measure the loss of a variant minus that of another, on all tokens or on a part of them."""
    results = records.studies.get(study)
    if results is None:
        return None
    if why := explain_divergence(results.get("diverged", {}), variant, baseline):
        return measure_nothing(why)
    row = _difference(results, variant, baseline, part, "best")
    if row is None:
        return None
    why = _explain(results, variant, baseline, part, row)
    # Rates were chosen by this study's sweep; or they differ, as another study's sweep chose them.
    groups = (entry["at"]["best"] for entry in results["variants"].values())
    rates = {group.get("learning_rate") for group in groups}
    chosen = bool(results["rates"]["variants"]) or len(rates) > 1
    return measure_row(
        row, uninformative=why, note="chosen rates" if chosen else "one learning rate"
    )


def _difference(
    results: Mapping[str, Any], variant: str, baseline: str, part: str | None, at: str
) -> Mapping[str, Any] | None:
    """The recorded difference, at the chosen rates where there is none at the common rate."""
    pair, metric = (variant, baseline), part or "validation_loss"
    rows = {
        row["at"]: row
        for row in results["differences"]
        if (row["variant"], row["baseline"]) == pair and row["metric"] == metric
    }
    if rows or not set(pair) <= results["variants"].keys():
        return rows.get(at, rows.get("best"))
    # A rank study records differences to one rank only: other pairs are computed here.
    best = [results["variants"][name]["at"]["best"] for name in pair]
    losses = [group["parts"].get(part) if part else group["validation_loss"] for group in best]
    if None in losses:
        return None
    values = [a - b for a, b in zip(*(loss["values"] for loss in losses), strict=False)]
    return {"at": "best", "values": values} | mean_interval(values).recorded()


def _explain(
    results: Mapping[str, Any],
    variant: str,
    baseline: str,
    part: str | None,
    row: Mapping[str, Any],
) -> str:
    """Why a difference is uninformative; empty if it is informative."""
    variants = results["variants"]
    if not results["verdict"]["informative"]:
        return str(results["verdict"]["sentence"]).removeprefix(
            "Uninformative about attention types: "
        )
    if why := explain_gap(variants, variant, baseline):
        return why
    if variant not in TYPES or baseline != "softmax" or row["mean"] >= 0:
        return ""
    if not variants.keys() & SIDE_EFFECTS:
        return NO_CONTROL

    def leads(first: str, second: str, at: str = "best") -> bool:
        """Whether the two are compared and the whole interval lies below 0."""
        row = _difference(results, first, second, part, at)
        if row is None or explain_gap(variants, first, second, row["at"]):
            return False
        return row["high"] is not None and row["high"] < 0

    if leads(variant, baseline) and not leads(variant, baseline, "common"):
        return "the lead is not shown at the common learning rate"
    explained = [
        control
        for control in SIDE_EFFECTS
        if control in variants
        and not (leads(variant, control) and leads(variant, control, "common"))
    ]
    controls = own_side_effects(variant)
    explained += [c for c in controls if c in variants and not leads(variant, c)]
    if variant == "diff" and WITHOUT_NORM in variants and not leads(WITHOUT_NORM, baseline):
        explained.append(WITHOUT_NORM)
    if not explained and not set(controls) <= variants.keys():
        return NO_CONTROL
    return name_controls(explained)


def _loss_claim(
    variant: str, baseline: str, *, part: str | None = None, study: _Study = "text"
) -> Claim:
    pair = {"variant": variant, "baseline": baseline}
    claim = study_claim(study, loss_difference, **pair, part=part, study=study)
    if study == "text" and not {*pair.values()} <= {*FEW}:  # not trained at laptop scale
        claim = claim._replace(commands=claim.commands._replace(laptop=None))
    return claim


LOSS_MEASURES = {
    "loss": _loss_claim("diff", "softmax"),
    "long-context": _loss_claim("diff", "softmax", part="quarter_4"),
    "context-recall": _loss_claim("diff", "softmax", part="repeated_bigram"),
    "head-norm": _loss_claim("diff_no_norm", "diff"),
    "head-norm-alone": _loss_claim("softmax_wide_norm", "softmax_wide", study="ablations"),
    "lambda-init-0.8": _loss_claim("diff_lambda_08", "diff", study="ablations"),
    "lambda-init-0.5": _loss_claim("diff_lambda_05", "diff", study="ablations"),
    "shared-loss": _loss_claim("shared_diff", "softmax"),
    "shared-rank": _loss_claim("shared_diff_r2", "shared_diff_r16", study="rank"),
    "v2-loss": _loss_claim("diff_v2", "softmax"),
    "v2-norm": _loss_claim("diff_v2_norm", "diff_v2"),
    "v2-lambda": _loss_claim("diff_v2_no_lambda", "diff_v2", study="ablations"),
    "v2-pairing": _loss_claim("diff_v2_across", "diff_v2", study="ablations"),
}
