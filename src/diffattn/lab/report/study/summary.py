"""The numbers of a comparison: as recorded, or computed from the runs that finished."""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from diffattn.lab.catalog.models import CONTROLS, FLOOR
from diffattn.lab.report.page.phase import gap
from diffattn.lab.report.page.runs import BASELINE, StudyRun, is_number
from diffattn.lab.report.page.wording import number, verdict
from diffattn.lab.report.study.files import TextStudy, has_loss
from diffattn.lab.stats.intervals import Interval, mean_interval
from diffattn.lab.stats.paired import paired_difference

LOSS = "validation_loss"
ROLES = {"softmax": "baseline", "diff": "type", "diff_v2": "type", "shared_diff": "type"}
"""Of a study that has not finished, and so has not recorded them."""
COMPARED = ("baseline", "type")
NOT_COMPARED = "not compared"


@dataclass(frozen=True)
class Measured:
    """Values, one per run."""

    runs: tuple[str, ...]
    values: tuple[float, ...]
    interval: Interval


@dataclass(frozen=True)
class Group:
    """Runs of one variant at one learning rate."""

    learning_rate: float | None
    loss: Measured
    """Validation loss, nats per token."""
    parts: dict[str, Interval] = field(default_factory=dict)
    """Validation loss of a part of the tokens."""
    phase_steps: tuple[int | None, ...] | None = None
    """Step at which each run passed the induction phase, ``None`` if it did not."""


@dataclass(frozen=True)
class Variant:
    """One model of the comparison."""

    name: str
    role: str
    """``"baseline"``, ``"type"``, ``"control"``, ``"ablation"``, ``"match"`` or ``"rank"``."""
    what: str = ""
    """What it separates."""
    parameters: int | None = None
    train_flops_per_token: int | None = None
    attention_parameters: int | None = None
    best: Group | None = None
    """``None`` while no run has finished."""
    common: Group | None = None
    """At the common learning rate, where it is not the best."""


@dataclass(frozen=True)
class Difference:
    """Values of one variant minus those of another, paired by seed."""

    variant: str
    baseline: str
    at: str
    """``"best"`` or ``"common"``: the learning rates."""
    metric: str
    runs: tuple[tuple[str, str], ...]
    values: tuple[float, ...]
    interval: Interval


def variants_of(study: TextStudy) -> dict[str, Variant]:
    """Every variant in the order shown, with what is known of it."""
    if study.results is None:
        return {name: _from_runs(study, name) for name in study.variants}
    recorded = study.results["variants"]
    return {
        name: _recorded_variant(name, recorded[name])
        if name in recorded
        else Variant(name, _unrecorded_role(name))
        for name in study.variants
    }


def shown_in_charts(study: TextStudy) -> list[str]:
    """The variants whose curves are drawn: baseline, types and no attention."""
    return [
        name
        for name, variant in variants_of(study).items()
        if variant.role in COMPARED or name == FLOOR
    ]


def bits_per_byte(run: StudyRun) -> float | None:
    """Of a finished run that has them."""
    value = run.result("validation_bits_per_byte")
    return value if is_number(value) else None


def differences(study: TextStudy, metric: str = LOSS) -> list[Difference]:
    """Every paired difference in the validation loss, or in that of a part of the tokens."""
    if study.results is None:
        return _computed_differences(study) if metric == LOSS else []
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
        for entry in study.results["differences"]
        if entry["metric"] == metric
    ]


def difference(
    study: TextStudy, variant: str, baseline: str, at: str = "best", metric: str = LOSS
) -> Difference | None:
    """One difference, if it is known, be it the other way round.

    At the common rate, that at the best one where it is the same of both.
    """
    every = variants_of(study)
    both = (every.get(variant), every.get(baseline))
    if at == "common" and all(one is not None and one.common is None for one in both):
        at = "best"
    known = [entry for entry in differences(study, metric) if entry.at == at]
    for entry in known:
        if (entry.variant, entry.baseline) == (variant, baseline):
            return entry
    for entry in known:
        if (entry.variant, entry.baseline) == (baseline, variant):
            return _turned(entry)
    return None


def baseline_of(study: TextStudy, variant: str) -> str | None:
    """What a variant is compared with: the first that its differences name."""
    named = (entry.baseline for entry in differences(study) if entry.variant == variant)
    return next(named, None)


def rows_of(study: TextStudy) -> list[dict[str, Any]]:
    """The comparisons that are tested together; none but in a study of ablations."""
    return (study.results or {}).get("rows") or []


def tests_of(study: TextStudy) -> list[dict[str, Any]]:
    """Every difference with an adjusted p-value: the rows, or what a comparison's verdict takes."""
    return rows_of(study) or (study.results or {}).get("tests") or []


def why_apart(study: TextStudy, entry: Difference) -> str:
    """Why a difference that is tested is not compared; empty if it is.

    Args:
        study: The study.
        entry: One of its differences.
    """
    return gap((study.results or {})["variants"], entry.variant, entry.baseline, entry.at)


def in_words(study: TextStudy, entry: Difference) -> str:
    """What a difference shows: by the adjusted p-value where the study has one, else its interval.

    Args:
        study: The study.
        entry: One of its differences.
    """
    pair = (entry.variant, entry.baseline)
    for test in tests_of(study) if entry.metric == LOSS else ():
        # A test of the turned pair is the same test.
        if {test["variant"], test["baseline"]} == set(pair) and test["at"] == entry.at:
            if why := why_apart(study, entry):
                return f"{NOT_COMPARED}: {why}"
            if test["p_holm"] is not None and not test["shown"]:
                return "no difference shown after Holm"
            if test["shown"]:
                side = "lower" if entry.interval.mean < 0 else "higher"
                return f"{side} by {number(abs(entry.interval.mean))}"
    said = verdict(entry.interval)
    return f"{said} (not among the tests)" if tests_of(study) else said


def group_at(variant: Variant, at: str) -> Group | None:
    """At the common rate, the runs at the best rate where the two are the same."""
    return variant.common if at == "common" and variant.common is not None else variant.best


def _recorded_variant(name: str, entry: dict[str, Any]) -> Variant:
    at = entry["at"]
    return Variant(
        name=name,
        role=entry["role"],
        what=entry.get("what", ""),
        parameters=entry.get("parameters"),
        train_flops_per_token=entry.get("train_flops_per_token"),
        attention_parameters=entry.get("attention_parameters"),
        best=_recorded_group(at.get("best")),
        common=_recorded_group(at.get("common")),
    )


def _recorded_group(entry: dict[str, Any] | None) -> Group | None:
    if entry is None:
        return None
    steps = entry.get("phase_steps")
    return Group(
        learning_rate=entry["learning_rate"],
        loss=Measured(tuple(entry["runs"]), tuple(entry[LOSS]["values"]), _interval(entry[LOSS])),
        parts={name: _interval(part) for name, part in (entry.get("parts") or {}).items()},
        phase_steps=None if steps is None else tuple(steps),
    )


def _interval(entry: dict[str, Any]) -> Interval:
    """An interval as ``results.json`` holds it; never computed again."""
    low, high, n = entry.get("low"), entry.get("high"), entry.get("n", len(entry["values"]))
    return Interval(entry["mean"], low, high, entry["level"], n, "results.json")


def _from_runs(study: TextStudy, name: str) -> Variant:
    """A variant of a study that has not finished."""
    runs = study.runs_of(name)
    model = runs[0].record.model if runs else {}
    finished = [run for run in runs if has_loss(run)]
    best = None
    if finished:
        values = [run.result(LOSS) for run in finished]
        train = finished[0].record.config.get("train")
        rate = train.get("learning_rate") if isinstance(train, dict) else None
        best = Group(
            learning_rate=rate if is_number(rate) else None,
            loss=Measured(
                tuple(run.name for run in finished), tuple(values), mean_interval(values)
            ),
        )
    return Variant(
        name=name,
        role=_unrecorded_role(name),
        parameters=_whole(model.get("parameters")),
        train_flops_per_token=_whole(model.get("train_flops_per_token")),
        best=best,
    )


def _unrecorded_role(name: str) -> str:
    if name.endswith(("_heads", "_flops")):
        return "match"
    return ROLES.get(name) or ("control" if name in CONTROLS else "ablation")


def _turned(entry: Difference) -> Difference:
    """The same difference the other way round."""
    of = entry.interval
    low, high = (None if end is None else -end for end in (of.high, of.low))
    return replace(
        entry,
        variant=entry.baseline,
        baseline=entry.variant,
        runs=tuple((b, a) for a, b in entry.runs),
        values=tuple(-value for value in entry.values),
        interval=replace(of, mean=-of.mean, low=low, high=high),
    )


def _whole(value: Any) -> int | None:
    return value if isinstance(value, int) and is_number(value) else None


def _computed_differences(study: TextStudy) -> list[Difference]:
    """Types and no attention minus the Transformer, and types minus no attention."""
    pairs = [(name, BASELINE) for name in shown_in_charts(study) if name != BASELINE]
    types = [name for name in shown_in_charts(study) if ROLES.get(name) is not None]
    pairs += [(name, FLOOR) for name in types if FLOOR in study.variants]
    made = (
        _computed_difference(name, study.runs_of(name), other, study.runs_of(other))
        for name, other in pairs
    )
    return [entry for entry in made if entry is not None]


def _computed_difference(
    variant: str, runs: Sequence[StudyRun], baseline: str, others: Sequence[StudyRun]
) -> Difference | None:
    """The difference over the seeds that both have; ``None`` if there are none."""
    by_seed = {run.record.seed: run for run in others if has_loss(run)}
    pairs = [
        (run, by_seed[run.record.seed])
        for run in runs
        if has_loss(run) and run.record.seed in by_seed
    ]
    if not pairs:
        return None
    here, there = ([run.result(LOSS) for run in side] for side in zip(*pairs, strict=True))
    return Difference(
        variant=variant,
        baseline=baseline,
        at="best",
        metric=LOSS,
        runs=tuple((a.name, b.name) for a, b in pairs),
        values=tuple(x - y for x, y in zip(here, there, strict=True)),
        interval=paired_difference(here, there),
    )
