"""The numbers of a comparison, as ``results.json`` records them. Nothing is computed again."""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from statistics import fmean
from typing import Any

import numpy as np

from diffattn.lab.catalog.models import BASELINE, FLOOR, NEVER_ATTEND, VARIANTS
from diffattn.lab.report.page.phase import explain_gap
from diffattn.lab.report.page.run_tables import median_cost
from diffattn.lab.report.page.runs import StudyRun, is_number
from diffattn.lab.report.page.wording import MISSING, count, number, verdict
from diffattn.lab.report.study.files import TextStudy
from diffattn.lab.stats.intervals import Interval
from diffattn.lab.stats.paired import paired_difference

LOSS = "validation_loss"
COMPARED = ("baseline", "type")
"""Roles of the models in the main table."""
NOT_COMPARED = "not compared"
_LAST_ROWS = 5
"""Of the log, over which the training loss is averaged."""
_FEW = 4
"""At most as many variants are all drawn."""
RATES = {"best": "chosen", "common": "common"}
"""The learning rates of a group of runs: the key in the records, and the word in tables."""
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


@dataclass(frozen=True)
class Group:
    """Runs of one variant at one learning rate."""

    learning_rate: float | None
    runs: tuple[str, ...]
    losses: tuple[float, ...]
    """Validation loss of each run, nats per token."""
    loss: Interval
    parts: dict[str, Interval] = field(default_factory=dict)
    """Validation loss of a part of the tokens."""
    phase_steps: tuple[int | None, ...] | None = None
    """Step at which each run passed the induction phase, ``None`` if it did not."""


@dataclass(frozen=True)
class Variant:
    """One model of the comparison."""

    name: str
    role: str
    summary: str = ""
    """The effect that it separates."""
    parameters: int | None = None
    train_flops_per_token: int | None = None
    attention_parameters: int | None = None
    best: Group | None = None
    """Runs at the chosen rate. ``None`` before the study has finished."""
    common: Group | None = None
    """Runs at the common rate, where it is not the chosen one."""

    def group(self, at: str) -> Group | None:
        """The runs at a rate; at the common one those at the chosen rate if the two are equal."""
        return self.common if at == "common" and self.common is not None else self.best


@dataclass(frozen=True)
class Difference:
    """Losses of one variant minus those of another, paired by seed."""

    variant: str
    baseline: str
    at: str
    """A key of :data:`RATES`."""
    metric: str
    runs: tuple[tuple[str, str], ...]
    values: tuple[float, ...]
    interval: Interval


def variants_of(study: TextStudy) -> dict[str, Variant]:
    """Every variant in the order shown, with what is recorded of it."""
    recorded = (study.results or {}).get("variants") or {}
    return {name: _variant(name, recorded.get(name)) for name in study.variants}


def shown_in_charts(study: TextStudy) -> list[str]:
    """The variants whose curves are drawn: all of a few, else those compared and no attention."""
    every = variants_of(study)
    if len(every) <= _FEW:
        return list(every)
    return [name for name, variant in every.items() if variant.role in COMPARED or name == FLOOR]


def bits_per_byte(run: StudyRun) -> float | None:
    """Validation loss of a finished run in bits per byte, where it was recorded."""
    value = run.result("validation_bits_per_byte")
    return value if is_number(value) else None


def differences(study: TextStudy, metric: str = LOSS) -> list[Difference]:
    """Every paired difference in the validation loss, or in that of a part of the tokens."""
    return [
        Difference(
            variant=entry["variant"],
            baseline=entry["baseline"],
            at=entry["at"],
            metric=entry["metric"],
            runs=tuple((run, other) for run, other in entry["runs"]),
            values=tuple(entry["values"]),
            interval=_interval(entry),
        )
        for entry in (study.results or {}).get("differences") or ()
        if entry["metric"] == metric
    ]


def difference(
    study: TextStudy, variant: str, baseline: str, at: str = "best", metric: str = LOSS
) -> Difference | None:
    """One recorded difference, turned round if the record has it so.

    At the common rate it is that at the chosen one where both models have one rate.
    """
    every = variants_of(study)
    if at == "common" and all(
        name in every and every[name].common is None for name in (variant, baseline)
    ):
        at = "best"
    for entry in differences(study, metric):
        if entry.at == at and {entry.variant, entry.baseline} == {variant, baseline}:
            return entry if entry.variant == variant else _turn(entry)
    return None


def baseline_of(study: TextStudy, variant: str) -> str | None:
    """The model that a variant is compared with: the first that its differences name."""
    named = (entry.baseline for entry in differences(study) if entry.variant == variant)
    return next(named, None)


def rows_of(study: TextStudy) -> list[dict[str, Any]]:
    """The rows of a study of ablations; else none."""
    return (study.results or {}).get("rows") or []


def at_equal_time(study: TextStudy, name: str) -> Interval | None:
    """Loss minus the Transformer's after as much processor time, by seed; ``None`` without costs.

    The time of a whole run of the Transformer, by medians. A model that needs more has not finished
    its schedule there: its learning rate is still high, so it would end lower with its own.
    """
    runs = {run.name: run for run in study.runs}
    groups = [variants_of(study)[side].best for side in (name, BASELINE)]
    sides = [[runs[run] for run in group.runs if run in runs] if group else [] for group in groups]
    seconds = [median_cost(side, "cpu_seconds") for side in sides]
    if seconds[0] is None or seconds[1] is None or groups[1] is None:
        return None
    curves = [run.series(LOSS) for run in sides[0]]
    if not all(curves):
        return None
    share = min(1.0, seconds[1] / seconds[0])
    by_seed = [np.transpose(curve) for curve in curves]
    losses = [float(np.interp(share * steps[-1], steps, values)) for steps, values in by_seed]
    return paired_difference(losses, groups[1].losses[: len(losses)])


def train_losses(study: TextStudy, name: str) -> list[float]:
    """Mean training loss of the last rows of the log, by seed; empty without them."""
    runs, variant = {run.name: run for run in study.runs}, variants_of(study).get(name)
    group = variant.best if variant else None
    logs = [runs[run].series("train_loss") for run in (group.runs if group else ()) if run in runs]
    return [fmean(loss for _, loss in log[-_LAST_ROWS:]) for log in logs if log]


def in_words(study: TextStudy, entry: Difference) -> str:
    """What a difference shows, or why it is none.

    A model without attention never copies, however long it trains: it is compared.
    """
    variants, pair = (study.results or {}).get("variants") or {}, {entry.variant, entry.baseline}
    is_timed = pair <= variants.keys() and pair.isdisjoint(NEVER_ATTEND)
    if is_timed and (reason := explain_gap(variants, entry.variant, entry.baseline, entry.at)):
        return f"{NOT_COMPARED}: {reason}"
    return verdict(entry.interval)


def training_budget(info: dict[str, Any]) -> str:
    """Steps and tokens of a run, and how often it read the text."""
    train = info["config"].get("train") or {}
    steps, batch = train.get("num_steps"), train.get("batch_tokens")
    if not (isinstance(steps, int) and isinstance(batch, int)):
        return MISSING
    text = (info.get("data") or {}).get("train_tokens")
    passes = steps * batch / text if isinstance(text, int) and text else 0
    times = f", {number(passes, 1)} times the text" if passes > 1 else ""
    return f"{count(steps)} steps of {count(batch)} tokens ({count(steps * batch)} tokens{times})"


def _variant(name: str, entry: dict[str, Any] | None) -> Variant:
    if entry is None:
        row = VARIANTS.get(name)
        return Variant(name, row.role if row else "ablation")
    return Variant(
        name=name,
        role=entry["role"],
        summary=entry.get("what", ""),
        parameters=entry.get("parameters"),
        train_flops_per_token=entry.get("train_flops_per_token"),
        attention_parameters=entry.get("attention_parameters"),
        best=_group(entry["at"].get("best")),
        common=_group(entry["at"].get("common")),
    )


def _group(entry: dict[str, Any] | None) -> Group | None:
    if entry is None:
        return None
    steps: Sequence[int | None] | None = entry.get("phase_steps")
    return Group(
        learning_rate=entry["learning_rate"],
        runs=tuple(entry["runs"]),
        losses=tuple(entry[LOSS]["values"]),
        loss=_interval(entry[LOSS]),
        parts={name: _interval(part) for name, part in (entry.get("parts") or {}).items()},
        phase_steps=None if steps is None else tuple(steps),
    )


def _interval(entry: dict[str, Any]) -> Interval:
    low, high, n = entry.get("low"), entry.get("high"), entry.get("n", len(entry["values"]))
    return Interval(entry["mean"], low, high, entry["level"], n, "results.json")


def _turn(entry: Difference) -> Difference:
    """The same difference the other way round."""
    interval = entry.interval
    low, high = (None if end is None else -end for end in (interval.high, interval.low))
    return replace(
        entry,
        variant=entry.baseline,
        baseline=entry.variant,
        runs=tuple((b, a) for a, b in entry.runs),
        values=tuple(-value for value in entry.values),
        interval=replace(interval, mean=-interval.mean, low=low, high=high),
    )
