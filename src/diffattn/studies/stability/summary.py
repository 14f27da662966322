"""From finished runs to the stability study's results and plain words."""

from collections.abc import Mapping, Sequence
from statistics import fmean
from typing import Any

from diffattn.models.attention_types import ATTENTION_TYPES
from diffattn.stats.intervals import mean_interval
from diffattn.stats.multiple import holm
from diffattn.stats.paired import paired_difference, paired_t_test
from diffattn.stats.spikes import (
    DEVIATIONS,
    LEAST_GRADIENT,
    LEAST_LOSS,
    WINDOW,
    Stability,
    rate_sensitivity,
    stability,
)
from diffattn.studies.limits import heads_below, spread
from diffattn.studies.stability.config import WITH_NORM, StabilityStudyConfig, run_name
from diffattn.studies.stability.verdict import verdict
from diffattn.studies.variants import FLOOR, WITHOUT_NORM

METRICS = ("loss", "loss_spike_share", "gradient_spike_share", "clipped_share")
"""Fields of :class:`diffattn.stats.spikes.Stability` that are compared between types."""
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
AGAINST_FLOOR = tuple((name, FLOOR) for name in (*ATTENTION_TYPES, WITHOUT_NORM, WITH_NORM))
"""Compared by loss alone: which models use their context at a rate. Where two of them do, a
difference between them may be one of attention; elsewhere it is not."""


def stability_results(
    config: StabilityStudyConfig,
    results: Mapping[str, Mapping[str, Any]],
    rows: Mapping[str, Sequence[Mapping[str, Any]]],
) -> dict[str, Any]:
    """Every measure per type and rate, and paired differences between types.

    Args:
        config: The study.
        results: Name of every run to what its ``results.json`` holds.
        rows: Name of every run to its ``metrics.jsonl``.
    """
    measured = {
        member.config.name: _measured(config, results[member.config.name], rows)
        for member in config.members()
    }
    against_floor = _at_rates(_among(AGAINST_FLOOR, config), "loss", config, measured)
    attending = _attending(config, against_floor)
    return {
        "schema": 1,
        "kind": "stability",
        "protocol": {"name": "stability_study", "version": 2},
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
        "attending": attending,
        "differences": _differences(config, measured, attending) + against_floor,
        "verdict": verdict(attending),
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


def _attending(
    config: StabilityStudyConfig, against_floor: Sequence[Mapping[str, Any]]
) -> dict[str, list[float]] | None:
    """Model to the rates at which its loss is shown to be below that of no attention."""
    if FLOOR not in config.types:
        return None
    found: dict[str, list[float]] = {name: [] for name, _ in _among(AGAINST_FLOOR, config)}
    for entry in against_floor:
        if entry["high"] is not None and entry["high"] < 0:
            found[entry["type"]].append(entry["learning_rate"])
    return found


def _differences(
    config: StabilityStudyConfig,
    measured: Mapping[str, Stability],
    attending: Mapping[str, Sequence[float]] | None,
) -> list[dict[str, Any]]:
    """At every rate, then over rates (``learning_rate`` null).

    The mean of a measure is over the rates at which both models are shown to attend; over all where
    there is none, which says nothing of attention (``informative`` false). Sensitivity is over all.
    Holm's adjustment is over the pairs and rates of a metric, and, apart from them, over all
    pairs and metrics of the means over rates.
    """
    pairs = _among(PAIRS, config)
    found = [entry for metric in METRICS for entry in _at_rates(pairs, metric, config, measured)]
    shared = {
        pair: [
            r for r in config.learning_rates if attending and all(r in attending[n] for n in pair)
        ]
        for pair in pairs
    }
    overall = []
    for metric in METRICS:
        for pair in pairs:
            rates = shared[pair] or config.learning_rates
            means = (
                [
                    fmean(getattr(measured[run_name(name, rate, seed)], metric) for rate in rates)
                    for seed in config.seeds
                ]
                for name in pair
            )
            entry = _difference(pair, metric, None, *means)
            overall.append(entry | {"rates": list(rates), "informative": bool(shared[pair])})
    for pair in pairs:
        sides = (_sensitivity(config, measured, name) for name in pair)
        overall.append(_difference(pair, "sensitivity", None, *sides))
    return found + _adjusted(overall)


def _among(pairs: Sequence[tuple[str, str]], config: StabilityStudyConfig) -> list[tuple[str, str]]:
    return [pair for pair in pairs if set(pair) <= set(config.types)]


def _at_rates(
    pairs: Sequence[tuple[str, str]],
    metric: str,
    config: StabilityStudyConfig,
    measured: Mapping[str, Stability],
) -> list[dict[str, Any]]:
    """One family of Holm's adjustment: every pair at every rate."""
    family = []
    for pair in pairs:
        for rate in config.learning_rates:
            sides = ([getattr(r, metric) for r in _values(config, measured, n, rate)] for n in pair)
            family.append(_difference(pair, metric, rate, *sides))
    return _adjusted(family)


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
    """With Holm's p-values; one seed has none."""
    known = [entry for entry in family if entry["p_value"] is not None]
    adjusted = holm([entry["p_value"] for entry in known])
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
        "reports are of models thousands of times larger: what is stable here may not be there. "
        f"{spread(len(config.seeds))}"
    )
