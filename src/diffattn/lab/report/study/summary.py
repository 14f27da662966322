"""Numbers of a comparison from ``results.json``. Training losses come from the runs' logs."""

from collections.abc import Iterator, Mapping
from statistics import fmean
from typing import Any

import numpy as np

from diffattn.lab.catalog.models import BASELINE, FLOOR, NEVER_ATTEND, VARIANTS
from diffattn.lab.report.page.phase import explain_gap
from diffattn.lab.report.page.run_tables import median_cost
from diffattn.lab.report.page.wording import count, number, verdict
from diffattn.lab.report.study.files import TextStudy
from diffattn.lab.stats.paired import paired_difference

LOSS = "validation_loss"
COMPARED = ("baseline", "type")
"""Roles of the models in the main table."""
NOT_COMPARED = "not compared"
_LAST_ROWS = 5
"""Number of last rows of the log over which the training loss is averaged."""
_FEW = 4
"""Charts draw all variants of a study with at most this many."""
RATES = {"best": "chosen", "common": "common"}
"""Key of a learning rate in the records -> word in tables."""
PARTS = {
    "repeated_bigram": "Repeated pair",
    "repeated_token": "Repeated token",
    "first_occurrence": "First occurrence",
}
PART_MEANINGS = {
    "repeated_bigram": "The token and the one before it stood side by side earlier in the window.",
    "repeated_token": "The token stood in the window before, but not after this predecessor.",
    "first_occurrence": "The token is new in the window.",
}
QUARTERS = {f"quarter_{i}": f"Quarter {i}" for i in (1, 2, 3, 4)}
COUNT_MODELS = {"unigram": "Unigram", "bigram": "Bigram", "bigram_copy": "Bigram + copy"}
"""Models that count the training tokens and learn nothing else."""


def variants_of(study: TextStudy) -> dict[str, dict[str, Any]]:
    """Variant -> its record, in the order shown; empty before the study has finished."""
    recorded = study.recorded.get("variants", {})
    return {name: recorded[name] for name in study.variants if name in recorded}


def role_of(study: TextStudy, name: str) -> str:
    """The role of a variant, whether or not the study has finished."""
    row = VARIANTS.get(name)
    return str(variants_of(study).get(name, {"role": row.role if row else "ablation"})["role"])


def groups_of(variant: Mapping[str, Any]) -> list[dict[str, Any]]:
    """A variant's groups of runs: at its chosen rate, and at the common rate if it has some."""
    return [variant["at"][at] for at in RATES if at in variant["at"]]


def shown_in_charts(study: TextStudy) -> list[str]:
    """The variants whose curves are drawn: all if few, else types, baseline and no attention."""
    if len(study.variants) <= _FEW:
        return list(study.variants)
    return [name for name in study.variants if role_of(study, name) in COMPARED or name == FLOOR]


def differences(study: TextStudy, metric: str = LOSS) -> Iterator[dict[str, Any]]:
    """All paired differences in one metric: the validation loss, or the loss on a part."""
    return (entry for entry in study.recorded.get("differences", ()) if entry["metric"] == metric)


def difference(
    study: TextStudy, variant: str, baseline: str, at: str = "best", metric: str = LOSS
) -> dict[str, Any] | None:
    """One recorded difference, negated if the record has the pair the other way round.

    If neither model has runs at the rate ``at``, the difference at the chosen rates is returned.
    """
    every = variants_of(study)
    if all(name in every and at not in every[name]["at"] for name in (variant, baseline)):
        at = "best"
    for entry in differences(study, metric):
        if entry["at"] == at and {entry["variant"], entry["baseline"]} == {variant, baseline}:
            return entry if entry["variant"] == variant else _negated(entry)
    return None


def _negated(entry: dict[str, Any]) -> dict[str, Any]:
    """Negate a difference and swap its sides."""
    low, high = (None if end is None else -end for end in (entry["high"], entry["low"]))
    return entry | {
        "variant": entry["baseline"],
        "baseline": entry["variant"],
        "runs": [(b, a) for a, b in entry["runs"]],
        "values": [-value for value in entry["values"]],
        "mean": -entry["mean"],
        "low": low,
        "high": high,
    }


def baseline_of(study: TextStudy, variant: str) -> str | None:
    """The baseline of a variant's first recorded difference, or ``None``."""
    named = (entry["baseline"] for entry in differences(study) if entry["variant"] == variant)
    return next(named, None)


def rows_of(study: TextStudy) -> list[dict[str, Any]]:
    """The rows of a study of ablations or ranks; else empty."""
    return study.recorded.get("rows") or []


def at_equal_time(study: TextStudy, name: str) -> dict[str, Any] | None:
    """Loss minus the Transformer's at equal processor time, by seed; ``None`` without costs.

    The time is the median of the Transformer's whole runs. A slower model has not finished its
    schedule at that time. Its learning rate is still high, so a shorter schedule would end lower.
    """
    runs, every = {run.name: run for run in study.runs}, variants_of(study)
    groups = [every[side]["at"]["best"] for side in (name, BASELINE) if side in every]
    sides = [[runs[run] for run in group["runs"] if run in runs] for group in groups]
    seconds = [median_cost(side, "cpu_seconds") for side in sides]
    if len(groups) < 2 or seconds[0] is None or seconds[1] is None:
        return None
    curves = [run.series(LOSS) for run in sides[0]]
    if not all(curves):
        return None
    share = min(1.0, seconds[1] / seconds[0])
    by_seed = [np.transpose(curve) for curve in curves]
    losses = [float(np.interp(share * steps[-1], steps, values)) for steps, values in by_seed]
    return paired_difference(losses, groups[1][LOSS]["values"][: len(losses)]).recorded()


def train_losses(study: TextStudy, name: str) -> list[float]:
    """Mean training loss of the last rows of the log, by seed; empty without them."""
    runs, variant = {run.name: run for run in study.runs}, variants_of(study).get(name)
    names = variant["at"]["best"]["runs"] if variant else ()
    logs = [runs[run].series("train_loss") for run in names if run in runs]
    return [fmean(loss for _, loss in log[-_LAST_ROWS:]) for log in logs if log]


def in_words(study: TextStudy, entry: Mapping[str, Any]) -> str:
    """A difference in words, or why the pair is not compared.

    Models without attention never copy, so that the induction phase does not exclude them.
    """
    variants, pair = variants_of(study), (entry["variant"], entry["baseline"])
    is_timed = variants.keys() >= set(pair) and set(pair).isdisjoint(NEVER_ATTEND)
    if is_timed and (reason := explain_gap(variants, *pair, entry["at"])):
        return f"{NOT_COMPARED}: {reason}"
    return verdict(entry)


def training_budget(info: dict[str, Any]) -> str:
    """Steps and tokens of a run, and how often it read the text."""
    train, text = info["config"]["train"], info.get("data", {}).get("train_tokens")
    steps, batch = train["num_steps"], train["batch_tokens"]
    passes = steps * batch / text if text else 0
    times = f", {number(passes, 1)} times the text" if passes > 1 else ""
    return f"{count(steps)} steps of {count(batch)} tokens ({count(steps * batch)} tokens{times})"
