"""Stability studies: every model at every learning rate and seed, spikes and the verdict.

A difference between two models is due to attention only if both gain from their context.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import product
from statistics import fmean
from typing import Any, cast

from diffattn.lab.catalog.models import (
    FLOOR,
    NEVER_ATTEND,
    TYPES,
    V2_WITH_NORM,
    VARIANTS,
    WIDER_FLOOR,
    WITHOUT_NORM,
    type_name,
)
from diffattn.lab.catalog.recipes.stability import STABILITY
from diffattn.lab.records.fields import require
from diffattn.lab.records.study_results import StabilityDifference, StabilityResults
from diffattn.lab.records.text_results import Outcome
from diffattn.lab.report.page.wording import listing
from diffattn.lab.stats import spikes
from diffattn.lab.stats.intervals import mean_of_seeds
from diffattn.lab.stats.paired import holm, paired_t_test
from diffattn.lab.studies.limits import MARGIN, heads_below, spread
from diffattn.lab.studies.study import FixedStudy, PlannedRun, Results


@dataclass(frozen=True, kw_only=True)
class StabilityStudyConfig(FixedStudy):
    """The runs of a stability study. All models read the same tokens at the same seed and step."""

    kind: str = "stability"
    learning_rates: tuple[float, ...]
    """Peak rates; the ratio of final to peak rate is kept."""
    types: tuple[str, ...] = (*TYPES, WITHOUT_NORM, V2_WITH_NORM, FLOOR, WIDER_FLOOR)

    def _check(self) -> None:
        where, train, window = "StabilityStudyConfig", self.base.train, spikes.WINDOW
        must = "train.log_every must be 1, as a spike lasts a step"
        require(where, train.log_every == 1, must, train.log_every)
        must = f"train.num_steps must be more than {window}, the steps that a step is compared with"
        require(where, train.num_steps > window, must, train.num_steps)
        must = "guard must be left at its defaults, as spikes and divergence are counted"
        require(where, not self.base.guard.intervenes, must, self.base.guard)

    def planned_runs(self) -> list[PlannedRun]:
        """The runs, seed by seed."""
        twins = {name: VARIANTS[name].twin(self.base.model, self.match) for name in self.types}
        planned = []
        for seed, rate in product(self.seeds, self.learning_rates):
            train = self.base.train.at(rate, seed)
            for name, twin in twins.items():
                run = run_name(name, rate, seed)
                config = replace(self.base, name=run, model=twin.config, train=train)
                planned.append(PlannedRun.from_twin(config, twin, records_divergence=True))
        return planned

    def keeps_weights(self, run: str) -> bool:
        """No run keeps its weights."""
        return False


def run_name(model: str, rate: float, seed: int) -> str:
    """Name of a run, unique within its study."""
    return f"{model}-lr{rate:g}-seed{seed}"


def stability_study(
    scale: str, *, settings: Sequence[str] = (), **options: Any
) -> StabilityStudyConfig:
    """A stability study of a scale. A changed ``train.learning_rate`` scales all rates."""
    study = StabilityStudyConfig.planned(STABILITY, scale, settings=settings, **options)
    factor = study.base.train.learning_rate / STABILITY[scale]()["run"].train.learning_rate
    return replace(study, learning_rates=tuple(factor * rate for rate in study.learning_rates))


METRICS = ("loss", "loss_spike_share", "gradient_spike_share", "clipped_share")
"""Fields of ``Stability`` that are compared between types."""
Pair = tuple[str, str]
PAIRS: tuple[Pair, ...] = (
    ("diff_v2", "diff"),
    ("diff", "softmax"),
    ("diff_v2", "softmax"),
    ("shared_diff", "softmax"),
    (WITHOUT_NORM, "diff"),
    (V2_WITH_NORM, "diff_v2"),
)
"""Models and their baselines. The first pair is the published claim."""
AGAINST_FLOORS = tuple(
    (name, floor) for floor in NEVER_ATTEND for name in (*TYPES, WITHOUT_NORM, V2_WITH_NORM)
)
"""Their losses alone are compared, to find which models attend."""
Rows = Mapping[str, Sequence[Mapping[str, Any]]]
"""Name of a run -> rows of its ``metrics.jsonl``."""


_BELOW = f"to end {MARGIN:g} nats or more below the models without attention"
_HOW = "(paired 95 % intervals)"
Attending = Mapping[str, Sequence[float]]
"""Model -> the rates at which it attends."""
Shared = Mapping[Pair, Sequence[float]]
"""Pair -> the rates at which both attend, or one attends and the other diverged."""


# Why a difference is uninformative about attention, or about large rates.
_DIVERGED = "a run of one of the two diverged"
_NOT_BOTH = "not both models are shown to attend, nor did one diverge where the other attends"
_AT_NONE = "over all rates, as at none both models are shown to attend: says nothing of attention"
_AT_LOWEST = "they are compared at the lowest rate alone: says nothing of large rates"
_NOT_AT_ALL = (
    "over all rates, but not at all are both models shown to attend: says nothing of attention"
)


def stability_results(
    config: StabilityStudyConfig, results: Results, rows: Rows
) -> StabilityResults:
    """Every measure per type and rate, and paired differences between types."""
    runs = _Measured(config, results, rows)
    to_floors = runs.differences_to_floors()
    attending = _attending_rates(to_floors)
    diverged = {
        name: [rate for rate in config.learning_rates if runs.diverged(name, rate)]
        for name in config.types
    }
    shared = {pair: _shared_rates(attending, diverged, pair) for pair in PAIRS}
    void = sorted({rate for floor in NEVER_ATTEND for rate in diverged[floor]})
    return {
        "schema": 1,
        "kind": "stability",
        "protocol": {"name": "stability_study", "version": 3},
        "scale": config.scale,
        "definition": {
            "window": spikes.WINDOW,
            "deviations": spikes.DEVIATIONS,
            "least_loss": spikes.LEAST_LOSS,
            "least_log_gradient": spikes.LEAST_GRADIENT,
        },
        "types": {
            name: {
                "rates": [runs.at_rate(name, rate) for rate in config.learning_rates],
                "sensitivity": mean_of_seeds(runs.sensitivity(name)),
            }
            for name in config.types
        },
        "attending": attending,
        "differences": runs.differences(shared) + to_floors,
        "verdict": _verdict(attending, shared, config.learning_rates, void),
        "statement": _statement(config),
        "complete": True,
    }


class _Measured:
    def __init__(self, config: StabilityStudyConfig, results: Results, rows: Rows) -> None:
        self.config = config
        self.rates = config.learning_rates
        self.runs = {}
        train = config.base.train
        for run in (run.config.name for run in config.planned_runs()):
            trained = [row for row in rows[run] if "train_loss" in row]
            self.runs[run] = spikes.stability(
                [row["train_loss"] for row in trained],
                [row["gradient_norm"] for row in trained],
                num_steps=train.num_steps,
                vocab_size=config.base.model.vocab_size,
                max_gradient_norm=train.max_grad_norm,
                validation_loss=results[run]["validation_loss"],
            )

    def at(self, name: str, rate: float) -> list[spikes.Stability]:
        return [self.runs[run_name(name, rate, seed)] for seed in self.config.seeds]

    def diverged(self, name: str, rate: float) -> bool:
        return any(run.diverged for run in self.at(name, rate))

    def at_rate(self, name: str, rate: float) -> Any:
        runs = self.at(name, rate)
        return {
            "learning_rate": rate,
            "runs": [run_name(name, rate, seed) for seed in self.config.seeds],
            "diverged": [run.diverged for run in runs],
            "diverged_steps": [run.diverged_step for run in runs],
            "median_gradient_norms": [run.median_gradient_norm for run in runs],
            **{name: mean_of_seeds([getattr(run, name) for run in runs]) for name in METRICS},
        }

    def sensitivity(self, name: str) -> list[float]:
        by_rate = zip(*(self.at(name, rate) for rate in self.rates), strict=True)
        return [spikes.rate_sensitivity([run.loss for run in runs]) for runs in by_rate]

    def differences_to_floors(self) -> list[StabilityDifference]:
        """The loss of every model minus that of every floor at every rate, as one Holm family."""
        family = []
        for pair in AGAINST_FLOORS:
            for rate in self.rates:
                why = _DIVERGED if any(self.diverged(name, rate) for name in pair) else ""
                family.append(self._difference(pair, "loss", why, [rate], at=rate))
        return _adjusted(family)

    def differences(self, shared: Mapping[Pair, Sequence[float]]) -> list[StabilityDifference]:
        """Differences of all pairs at each rate, a Holm family per measure; and over rates, one.

        Means are over the shared rates, or over all if none is shared. Sensitivities include all
        rates. They say something only if both models attend at every rate, because a model that
        always diverges would look insensitive.
        """
        differences, overall = [], []
        for metric in METRICS:
            at_rates = []
            for pair, rates in shared.items():
                for rate in self.rates:
                    why = "" if rate in rates else _NOT_BOTH
                    at_rates.append(self._difference(pair, metric, why, [rate], at=rate))
                why = _why_silent(rates, self.rates)
                overall.append(self._difference(pair, metric, why, rates or self.rates))
            differences += _adjusted(at_rates)
        for pair, rates in shared.items():
            diverged = any(self.diverged(name, rate) for name in pair for rate in rates)
            everywhere = len(rates) == len(self.rates) and not diverged
            why = _why_silent(rates, self.rates) if everywhere else _NOT_AT_ALL
            overall.append(self._difference(pair, "sensitivity", why, self.rates))
        return differences + _adjusted(overall)

    def _values(self, name: str, metric: str, rates: Sequence[float]) -> list[float]:
        """One number per seed: the mean over rates, or the sensitivity to the rate."""
        if metric == "sensitivity":
            return self.sensitivity(name)
        by_rate = zip(*(self.at(name, rate) for rate in rates), strict=True)
        return [fmean(getattr(run, metric) for run in runs) for runs in by_rate]

    def _difference(
        self, pair: Pair, metric: str, why: str, rates: Sequence[float], at: float | None = None
    ) -> StabilityDifference:
        sides = (self._values(name, metric, rates) for name in pair)
        differences = [a - b for a, b in zip(*sides, strict=True)]
        entry = {
            "type": pair[0],
            "baseline": pair[1],
            "metric": metric,
            "learning_rate": at,
            **mean_of_seeds(differences),
            "p_value": paired_t_test(differences),
            **({"rates": list(rates)} if at is None else {}),
            "why": why,
            "p_holm": None,
        }
        return cast(StabilityDifference, entry)


def _adjusted(family: list[StabilityDifference]) -> list[StabilityDifference]:
    """Add Holm's p-values. A difference that says nothing counts with p = 1, so that it makes no
    other one easier to show."""
    known = [(entry, p) for entry in family if (p := entry["p_value"]) is not None]
    adjusted = holm([1.0 if entry["why"] else p for entry, p in known])
    for (entry, _), p_holm in zip(known, adjusted, strict=True):
        entry["p_holm"] = p_holm
    return family


def _statement(config: StabilityStudyConfig) -> str:
    size = heads_below(run.config.model for run in config.planned_runs())
    return (
        f"{size}What counts as a spike was fixed before the first run. All models read the same "
        "tokens at the same seed and step, so a hard batch raises the loss of all. The published "
        "reports are of models of billions of parameters: what is stable at one size may not be at "
        f"another. {spread(len(config.seeds))}"
    )


def _attending_rates(differences: Sequence[StabilityDifference]) -> dict[str, list[float]]:
    """Model -> the rates at which it attends, rising.

    There the whole paired interval of its loss less that of each floor is at most -:data:`MARGIN`.
    It does not count as attending if a run of either side diverged."""
    rates: dict[str, dict[float, bool]] = {}
    for entry in sorted(differences, key=lambda entry: entry["learning_rate"] or 0.0):
        high, rate = entry["high"], entry["learning_rate"]
        assert rate is not None, "a difference to a floor is at one rate"
        is_below = not entry["why"] and high is not None and high <= -MARGIN
        at = rates.setdefault(entry["type"], {})
        at[rate] = at.get(rate, True) and is_below
    return {name: [rate for rate, attends in at.items() if attends] for name, at in rates.items()}


def _shared_rates(attending: Attending, diverged: Attending, pair: Pair) -> list[float]:
    """The rates at which two models are compared: both attend, or one does and the other diverged.

    Without the second case, means would leave out the rates at which a model is least stable."""
    kept = [{*attending[name], *diverged[name]} for name in pair]
    attended = {rate for name in pair for rate in attending[name]}
    return sorted(attended & kept[0] & kept[1])


def _why_silent(shared: Sequence[float], rates: Sequence[float]) -> str:
    if not shared:
        return _AT_NONE
    return "" if max(shared) > min(rates) else _AT_LOWEST


def _verdict(
    attending: Attending, shared: Shared, rates: Sequence[float], void: Sequence[float]
) -> Outcome:
    """It is informative if a pair shares a rate above the lowest. At the rates ``void`` a run
    without attention diverged."""
    reason = _uninformative(attending, shared, rates)
    parts = [f"Uninformative: {reason}."] if reason else []
    parts += _describe(attending, shared, rates, void)
    return {"informative": not reason, "sentence": " ".join(parts), "margin": MARGIN}


def _uninformative(attending: Attending, shared: Shared, rates: Sequence[float]) -> str:
    """The reason why the study is uninformative about attention at large rates; empty if none."""
    if not any(attending.values()):
        return (
            f"at no learning rate is a model shown {_BELOW} {_HOW}. What differs here between the "
            "models is not shown to be what they do with their context"
        )
    reasons = {_why_silent(at, rates) for at in shared.values()}
    if "" in reasons:
        return ""
    if _AT_LOWEST in reasons:
        return (
            f"models that are shown {_BELOW} are compared at the lowest learning rate "
            f"({min(rates):g}) alone, so nothing is said of large ones"
        )
    return f"at no learning rate are two models that are compared both shown {_BELOW}"


def _describe(
    attending: Attending, shared: Shared, rates: Sequence[float], void: Sequence[float]
) -> Iterator[str]:
    """List the models that attend, and the rates over which the mean of every pair is taken."""
    if void:
        yield f"Nothing is shown at {_rates(void)}: a run without attention diverged there."
    used = {name: at for name, at in attending.items() if at}
    if not used:
        return
    attend = listing(f"{type_name(name)} ({_rates(at)})" for name, at in used.items())
    yield f"Shown {_BELOW} {_HOW}: {attend}."
    if never := [type_name(name) for name in attending if name not in used]:
        yield f"Not at any rate: {listing(never)}."
    groups: dict[tuple[float, ...], list[str]] = {}
    for pair, at in shared.items():
        groups.setdefault(tuple(at), []).append(" − ".join(map(type_name, pair)))
    if groups:
        means = "; ".join(f"{_over(at, rates)}: {listing(pairs)}" for at, pairs in groups.items())
        yield (
            f"Means over rates, also where one of the two attends and the other diverged: {means}."
        )


def _over(shared: Sequence[float], rates: Sequence[float]) -> str:
    why = _why_silent(shared, rates)
    if why == _AT_NONE:
        return "over all rates, so saying nothing of attention"
    lowest = ", the lowest alone, so saying nothing of large ones" if why else ""
    return f"over {_rates(shared)}{lowest}"


def _rates(rates: Sequence[float]) -> str:
    return f"rate{'s' if len(rates) > 1 else ''} {listing(f'{rate:g}' for rate in rates)}"
