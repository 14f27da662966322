"""The numbers of a comparison: as recorded, or computed from the runs that finished."""

from dataclasses import dataclass
from typing import Any

from diffattn.errors import CheckpointError
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
    """Validation loss of every type that has one, in nats per token.

    Raises:
        CheckpointError: ``results.json`` lacks a field or holds another kind of value.
    """
    if study.results is None:
        return {t: r for t in study.types if (r := _of_runs(study, t, "validation_loss"))}
    recorded = {}
    for name in study.types:
        entry = study.results["types"].get(name)
        if entry is None:
            continue
        summary = _field(entry, "validation_loss", dict, name)
        runs = tuple(str(run) for run in _field(entry, "runs", list, name))
        recorded[name] = TypeResult(runs, *_recorded(summary, len(runs), name))
    return recorded


def bits_per_byte(study: Study) -> dict[str, TypeResult]:
    """Validation bits per byte of every type that has them, from the runs' own results."""
    metric = "validation_bits_per_byte"
    return {name: r for name in study.types if (r := _of_runs(study, name, metric))}


def differences(study: Study) -> list[Difference]:
    """Paired differences in validation loss to the baseline.

    Raises:
        CheckpointError: ``results.json`` lacks a field or holds another kind of value.
    """
    if study.results is None:
        return _computed_differences(study)
    recorded = []
    for entry in study.results["differences"]:
        name = _field(entry, "type", str, "differences")
        if _field(entry, "metric", str, name) != "validation_loss":
            continue
        runs = tuple(_pair(pair, name) for pair in _field(entry, "runs", list, name))
        values, interval = _recorded(entry, len(runs), name)
        baseline = _field(entry, "baseline", str, name)
        recorded.append(Difference(name, baseline, runs, values, interval))
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


def _recorded(
    entry: dict[str, Any], num_runs: int, where: str
) -> tuple[tuple[float, ...], Interval]:
    """Values and interval as ``results.json`` holds them; never computed again."""
    values = tuple(_field(entry, "values", list, where))
    if len(values) != num_runs:
        raise CheckpointError(
            f"results.json: {where} must name one run per value, "
            f"got {num_runs} runs and {len(values)} values."
        )
    mean, level = (_field(entry, key, float | int, where) for key in ("mean", "level"))
    low, high = entry.get("low"), entry.get("high")
    for value in (*values, mean, level, *(end for end in (low, high) if end is not None)):
        if not is_number(value):
            raise CheckpointError(f"results.json: {where} must hold finite numbers, got {value!r}.")
    interval = Interval(mean, low, high, level, entry.get("n", len(values)), "results.json")
    return values, interval


def _field(entry: Any, key: str, kind: Any, where: str) -> Any:
    value = entry.get(key) if isinstance(entry, dict) else None
    if not isinstance(value, kind):
        raise CheckpointError(f"results.json: {where} must hold {key}, got {value!r}.")
    return value


def _pair(names: Any, where: str) -> tuple[str, str]:
    if not isinstance(names, list) or len(names) != 2:
        raise CheckpointError(f"results.json: {where} must pair two runs, got {names!r}.")
    return str(names[0]), str(names[1])
