"""The numbers of a comparison: as recorded, or computed from the runs that finished."""

from dataclasses import dataclass
from typing import Any

from diffattn.report.page.runs import BASELINE, Study, is_number
from diffattn.report.study.files import has_loss
from diffattn.stats.intervals import Interval, mean_interval
from diffattn.stats.paired import paired_difference


@dataclass(frozen=True)
class TypeResult:
    """Values of one attention type, one per run."""

    runs: tuple[str, ...]
    values: tuple[float, ...]
    interval: Interval


@dataclass(frozen=True)
class Difference:
    """Differences in validation loss of one attention type to the baseline, paired by seed."""

    attention_type: str
    baseline: str
    runs: tuple[tuple[str, str], ...]
    values: tuple[float, ...]
    interval: Interval


def losses(study: Study) -> dict[str, TypeResult]:
    """Validation loss of every type that has one, in nats per token."""
    if study.results is None:
        return {t: r for t in study.types if (r := _of_runs(study, t, "validation_loss"))}
    recorded = {}
    for name in study.types:
        entry = study.results["types"].get(name)
        if entry is None:
            continue
        runs = tuple(entry["runs"])
        recorded[name] = TypeResult(runs, *_recorded(entry["validation_loss"]))
    return recorded


def bits_per_byte(study: Study) -> dict[str, TypeResult]:
    """Validation bits per byte of every type that has them, from the runs' own results."""
    metric = "validation_bits_per_byte"
    return {name: r for name in study.types if (r := _of_runs(study, name, metric))}


def differences(study: Study) -> list[Difference]:
    """Paired differences in validation loss to the baseline."""
    if study.results is None:
        return _computed_differences(study)
    recorded = []
    for entry in study.results["differences"]:
        if entry["metric"] == "validation_loss":
            runs = tuple((run, other) for run, other in entry["runs"])
            recorded.append(Difference(entry["type"], entry["baseline"], runs, *_recorded(entry)))
    return recorded


def _of_runs(study: Study, attention_type: str, metric: str) -> TypeResult | None:
    """A result read from the runs themselves; ``None`` if no run has it."""
    runs, values = [], []
    for run in study.runs_of(attention_type):
        if has_loss(run) and is_number(run.result(metric)):
            runs.append(run.name)
            values.append(run.result(metric))
    return TypeResult(tuple(runs), tuple(values), mean_interval(values)) if runs else None


def _computed_differences(study: Study) -> list[Difference]:
    baseline = {run.record.seed: run for run in study.runs_of(BASELINE) if has_loss(run)}
    computed = []
    for name in study.differential_types:
        pairs = [
            (run, baseline[run.record.seed])
            for run in study.runs_of(name)
            if has_loss(run) and run.record.seed in baseline
        ]
        if not pairs:
            continue
        here, there = (
            [run.result("validation_loss") for run in side] for side in zip(*pairs, strict=True)
        )
        computed.append(
            Difference(
                attention_type=name,
                baseline=BASELINE,
                runs=tuple((a.name, b.name) for a, b in pairs),
                values=tuple(x - y for x, y in zip(here, there, strict=True)),
                interval=paired_difference(here, there),
            )
        )
    return computed


def _recorded(entry: dict[str, Any]) -> tuple[tuple[float, ...], Interval]:
    """Values and interval as ``results.json`` holds them; never computed again."""
    values = tuple(entry["values"])
    low, high, n = entry.get("low"), entry.get("high"), entry.get("n", len(values))
    return values, Interval(entry["mean"], low, high, entry["level"], n, "results.json")
