"""From finished runs to the stability study's results and plain words."""

from collections.abc import Mapping, Sequence
from statistics import fmean
from typing import Any

from diffattn.lab.catalog.models import WITHOUT_NORM
from diffattn.lab.stats.intervals import mean_interval
from diffattn.lab.stats.multiple import holm
from diffattn.lab.stats.paired import paired_difference, paired_t_test
from diffattn.lab.stats.spikes import (
    DEVIATIONS,
    LEAST_GRADIENT,
    LEAST_LOSS,
    WINDOW,
    Stability,
    rate_sensitivity,
    stability,
)
from diffattn.lab.studies.limits import heads_below, spread
from diffattn.lab.studies.stability.attending import (
    DIVERGED,
    FLOORS,
    NOT_AT_ALL,
    NOT_BOTH,
    attending,
    shared_rates,
    why_not_over,
)
from diffattn.lab.studies.stability.config import WITH_NORM, StabilityStudyConfig, run_name
from diffattn.lab.studies.stability.verdict import verdict
from diffattn.models.config.attention_types import ATTENTION_TYPES

METRICS = ("loss", "loss_spike_share", "gradient_spike_share", "clipped_share")
"""Fields of :class:`diffattn.lab.stats.spikes.Stability` that are compared between types."""
PAIRS = (
    ("diff_v2", "diff"),
    ("diff", "softmax"),
    ("diff_v2", "softmax"),
    ("shared_diff", "softmax"),
    (WITHOUT_NORM, "diff"),
    (WITH_NORM, "diff_v2"),
)
"""Models and what they are compared with: the first is the published claim, the last two say
whether the head norm makes the difference."""
AGAINST_FLOORS = tuple(
    (name, floor) for floor in FLOORS for name in (*ATTENTION_TYPES, WITHOUT_NORM, WITH_NORM)
)
"""Compared by loss alone: which models use their context at a rate. Where two of them do, a
difference between them may be one of attention; elsewhere it is not."""


def stability_results(
    config: StabilityStudyConfig,
    results: Mapping[str, Mapping[str, Any]],
    rows: Mapping[str, Sequence[Mapping[str, Any]]],
) -> dict[str, Any]:
    """Every measure per type and rate, and paired differences between types.

    A difference that says nothing of attention, or nothing of it at large rates, has ``why``, and
    counts with 1 for its p-value where Holm's adjustment is made, so that it makes nothing else
    easier to show.

    Args:
        config: The study.
        results: Name of every run to what its ``results.json`` holds.
        rows: Name of every run to its ``metrics.jsonl``.
    """
    measured = {
        member.config.name: _measured(config, results[member.config.name], rows)
        for member in config.members()
    }
    floors = [name for name in FLOORS if name in config.types]
    to_floors = _against_floors(config, measured)
    found = attending(to_floors)
    diverged = {
        name: [rate for rate in config.learning_rates if _diverged(config, measured, name, rate)]
        for name in config.types
    }
    pairs = _among(PAIRS, config)
    shared = {pair: shared_rates(found, diverged, pair, floors) for pair in pairs}
    void = sorted({rate for floor in floors for rate in diverged[floor]})
    return {
        "schema": 1,
        "kind": "stability",
        "protocol": {"name": "stability_study", "version": 3},
        "scale": config.scale,
        "definition": {
            "window": WINDOW,
            "deviations": DEVIATIONS,
            "least_loss": LEAST_LOSS,
            "least_log_gradient": LEAST_GRADIENT,
        },
        "types": {
            name: {
                "rates": [_at_rate(config, measured, name, r) for r in config.learning_rates],
                "sensitivity": _summary(_sensitivity(config, measured, name)),
            }
            for name in config.types
        },
        "attending": found,
        "differences": _differences(config, measured, shared) + to_floors,
        "verdict": verdict(
            found,
            shared,
            config.learning_rates,
            lacking=[name for name in FLOORS if name not in floors],
            void=void,
        ),
        "statement": statement(config),
        "complete": True,
    }


def _measured(
    config: StabilityStudyConfig,
    result: Mapping[str, Any],
    rows: Mapping[str, Sequence[Mapping[str, Any]]],
) -> Stability:
    trained = [row for row in rows[result["run"]] if "train_loss" in row]
    train = config.base.train
    return stability(
        [row["train_loss"] for row in trained],
        [row["gradient_norm"] for row in trained],
        num_steps=train.num_steps,
        vocab_size=config.base.model.vocab_size,
        max_gradient_norm=train.max_grad_norm,
        validation_loss=result["validation_loss"],
    )


def _values(
    config: StabilityStudyConfig, measured: Mapping[str, Stability], name: str, rate: float
) -> list[Stability]:
    return [measured[run_name(name, rate, seed)] for seed in config.seeds]


def _at_rate(
    config: StabilityStudyConfig, measured: Mapping[str, Stability], name: str, rate: float
) -> dict[str, Any]:
    of_seeds = _values(config, measured, name, rate)
    return {
        "learning_rate": rate,
        "runs": [run_name(name, rate, seed) for seed in config.seeds],
        "diverged": [run.diverged for run in of_seeds],
        "diverged_steps": [run.diverged_step for run in of_seeds],
        "median_gradient_norms": [run.median_gradient_norm for run in of_seeds],
        **{metric: _summary([getattr(run, metric) for run in of_seeds]) for metric in METRICS},
    }


def _sensitivity(
    config: StabilityStudyConfig, measured: Mapping[str, Stability], name: str
) -> list[float]:
    """One per seed."""
    return [
        rate_sensitivity(
            {rate: measured[run_name(name, rate, seed)].loss for rate in config.learning_rates}
        )
        for seed in config.seeds
    ]


def _diverged(
    config: StabilityStudyConfig, measured: Mapping[str, Stability], name: str, rate: float
) -> bool:
    """Whether the run of any seed did."""
    return any(run.diverged for run in _values(config, measured, name, rate))


def _against_floors(
    config: StabilityStudyConfig, measured: Mapping[str, Stability]
) -> list[dict[str, Any]]:
    """The loss of every model minus that of every floor at every rate: one family."""
    family = _at_rates(_among(AGAINST_FLOORS, config), "loss", config, measured)
    for entry in family:
        sides, rate = (entry["type"], entry["baseline"]), entry["learning_rate"]
        lost = any(_diverged(config, measured, name, rate) for name in sides)
        entry["why"] = DIVERGED if lost else ""
    return _adjusted(family)


def _differences(
    config: StabilityStudyConfig,
    measured: Mapping[str, Stability],
    shared: Mapping[tuple[str, str], Sequence[float]],
) -> list[dict[str, Any]]:
    """Of every pair: at each rate, one family a measure; then over rates, one family of all."""
    found: list[dict[str, Any]] = []
    for metric in METRICS:
        family = _at_rates(list(shared), metric, config, measured)
        for entry in family:
            both = entry["learning_rate"] in shared[entry["type"], entry["baseline"]]
            entry["why"] = "" if both else NOT_BOTH
        found += _adjusted(family)
    overall = [
        _over_rates(pair, metric, config, measured, rates)
        for metric in METRICS
        for pair, rates in shared.items()
    ]
    for pair, rates in shared.items():
        sides = (_sensitivity(config, measured, name) for name in pair)
        # Where a model diverges its loss is a guess's: at all rates, it would look insensitive.
        everywhere = len(rates) == len(config.learning_rates) and not any(
            _diverged(config, measured, name, rate) for name in pair for rate in rates
        )
        why = why_not_over(rates, config.learning_rates) if everywhere else NOT_AT_ALL
        overall.append(
            _difference(pair, "sensitivity", None, *sides)
            | {"rates": list(config.learning_rates), "why": why}
        )
    return found + _adjusted(overall)


def _over_rates(
    pair: tuple[str, str],
    metric: str,
    config: StabilityStudyConfig,
    measured: Mapping[str, Stability],
    shared: Sequence[float],
) -> dict[str, Any]:
    """The difference of means over the rates at which both attend, or over all if there is none."""
    rates = shared or config.learning_rates
    means = (
        [
            fmean(getattr(measured[run_name(name, rate, seed)], metric) for rate in rates)
            for seed in config.seeds
        ]
        for name in pair
    )
    return _difference(pair, metric, None, *means) | {
        "rates": list(rates),
        "why": why_not_over(shared, config.learning_rates),
    }


def _among(pairs: Sequence[tuple[str, str]], config: StabilityStudyConfig) -> list[tuple[str, str]]:
    return [pair for pair in pairs if set(pair) <= set(config.types)]


def _at_rates(
    pairs: Sequence[tuple[str, str]],
    metric: str,
    config: StabilityStudyConfig,
    measured: Mapping[str, Stability],
) -> list[dict[str, Any]]:
    """Every pair at every rate."""
    family = []
    for pair in pairs:
        for rate in config.learning_rates:
            sides = ([getattr(r, metric) for r in _values(config, measured, n, rate)] for n in pair)
            family.append(_difference(pair, metric, rate, *sides))
    return family


def _difference(
    pair: tuple[str, str],
    metric: str,
    rate: float | None,
    values: Sequence[float],
    baseline: Sequence[float],
) -> dict[str, Any]:
    differences = [a - b for a, b in zip(values, baseline, strict=True)]
    interval = paired_difference(values, baseline)
    return {
        "type": pair[0],
        "baseline": pair[1],
        "metric": metric,
        "learning_rate": rate,
        "values": differences,
        **interval.recorded(),
        "n": interval.n,
        "p_value": paired_t_test(differences),
    }


def _adjusted(family: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """With Holm's p-values; one seed has none, and what says nothing counts with 1."""
    known = [entry for entry in family if entry["p_value"] is not None]
    adjusted = holm([1.0 if entry["why"] else entry["p_value"] for entry in known])
    for entry in family:
        entry["p_holm"] = None
    for entry, p in zip(known, adjusted, strict=True):
        entry["p_holm"] = p
    return family


def _summary(values: list[float]) -> dict[str, Any]:
    interval = mean_interval(values)
    return {"values": values, **interval.recorded(), "n": interval.n}


def statement(config: StabilityStudyConfig) -> str:
    """What this study can and cannot show, in plain words."""
    size = heads_below(member.config.model for member in config.members())
    return (
        f"{size}What counts as a spike was fixed before the first run. All models read the same "
        "tokens at the same seed and step, so a hard batch raises the loss of all. The published "
        "reports are of models of billions of parameters: what is stable at one size may not be at "
        "another. "
        f"{spread(len(config.seeds))}"
    )
