"""From finished runs to the results of a stability study, and its limits in words."""

from collections.abc import Mapping, Sequence
from statistics import fmean
from typing import Any, cast

from diffattn.lab.catalog.models import NEVER_ATTEND, TYPES, V2_WITH_NORM, WITHOUT_NORM
from diffattn.lab.records.study_results import StabilityDifference, StabilityResults
from diffattn.lab.stats.intervals import mean_of_seeds
from diffattn.lab.stats.paired import holm, paired_t_test
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
from diffattn.lab.studies.stability.config import StabilityStudyConfig, run_name
from diffattn.lab.studies.stability.verdict import (
    Silent,
    attending_rates,
    shared_rates,
    verdict,
    why_silent,
)
from diffattn.lab.studies.study import Results

METRICS = ("loss", "loss_spike_share", "gradient_spike_share", "clipped_share")
"""Fields of :class:`diffattn.lab.stats.spikes.Stability` that are compared between types."""
Pair = tuple[str, str]
PAIRS: tuple[Pair, ...] = (
    ("diff_v2", "diff"),
    ("diff", "softmax"),
    ("diff_v2", "softmax"),
    ("shared_diff", "softmax"),
    (WITHOUT_NORM, "diff"),
    (V2_WITH_NORM, "diff_v2"),
)
"""Models and their baselines. The first pair is the published claim. The last two pairs show the
effect of the head norm."""
AGAINST_FLOORS = tuple(
    (name, floor) for floor in NEVER_ATTEND for name in (*TYPES, WITHOUT_NORM, V2_WITH_NORM)
)
"""Models and controls without attention. Only their losses are compared, to find which attend."""
Rows = Mapping[str, Sequence[Mapping[str, Any]]]
"""Name of a run -> rows of its ``metrics.jsonl``."""


def stability_results(
    config: StabilityStudyConfig, results: Results, rows: Rows
) -> StabilityResults:
    """Every measure per type and rate, and paired differences between types.

    A difference that says nothing about attention at large rates carries the reason. In Holm's
    adjustment its p-value is 1, so that it makes no other difference easier to show.
    """
    runs = _Measured(config, results, rows)
    to_floors = runs.differences_to_floors()
    attending = attending_rates(to_floors)
    diverged = {
        name: [rate for rate in config.learning_rates if runs.diverged(name, rate)]
        for name in config.types
    }
    shared = {pair: shared_rates(attending, diverged, pair) for pair in PAIRS}
    void = sorted({rate for floor in NEVER_ATTEND for rate in diverged[floor]})
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
                "rates": [runs.at_rate(name, rate) for rate in config.learning_rates],
                "sensitivity": mean_of_seeds(runs.sensitivity(name)),
            }
            for name in config.types
        },
        "attending": attending,
        "differences": runs.differences(shared) + to_floors,
        "verdict": verdict(attending, shared, config.learning_rates, void),
        "statement": statement(config),
        "complete": True,
    }


class _Measured:
    def __init__(self, config: StabilityStudyConfig, results: Results, rows: Rows) -> None:
        self.config = config
        self.rates = config.learning_rates
        self.runs = {}
        train = config.base.train
        for run in (member.config.name for member in config.members()):
            trained = [row for row in rows[results[run]["run"]] if "train_loss" in row]
            self.runs[run] = stability(
                [row["train_loss"] for row in trained],
                [row["gradient_norm"] for row in trained],
                num_steps=train.num_steps,
                vocab_size=config.base.model.vocab_size,
                max_gradient_norm=train.max_grad_norm,
                validation_loss=results[run]["validation_loss"],
            )

    def at(self, name: str, rate: float) -> list[Stability]:
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
        return [rate_sensitivity([run.loss for run in runs]) for runs in by_rate]

    def differences_to_floors(self) -> list[StabilityDifference]:
        """The loss of every model minus that of every floor at every rate, as one Holm family."""
        family = []
        for pair in AGAINST_FLOORS:
            for rate in self.rates:
                diverged = any(self.diverged(name, rate) for name in pair)
                why = Silent.DIVERGED if diverged else None
                family.append(self._difference(pair, "loss", why, [rate], at=rate))
        return _adjusted(family)

    def differences(self, shared: Mapping[Pair, Sequence[float]]) -> list[StabilityDifference]:
        """Differences of all pairs at each rate, a Holm family per measure; and over rates, one.

        Means are over the shared rates, or over all rates if none is shared. Sensitivities always
        include all rates. A diverged run counts with the loss of a guess: a model that always
        diverges would look insensitive. So they say something only if both attend at every rate.
        """
        differences, overall = [], []
        for metric in METRICS:
            at_rates = []
            for pair, rates in shared.items():
                for rate in self.rates:
                    why = None if rate in rates else Silent.NOT_BOTH
                    at_rates.append(self._difference(pair, metric, why, [rate], at=rate))
                why = why_silent(rates, self.rates)
                overall.append(self._difference(pair, metric, why, rates or self.rates))
            differences += _adjusted(at_rates)
        for pair, rates in shared.items():
            diverged = any(self.diverged(name, rate) for name in pair for rate in rates)
            everywhere = len(rates) == len(self.rates) and not diverged
            why = why_silent(rates, self.rates) if everywhere else Silent.NOT_AT_ALL
            overall.append(self._difference(pair, "sensitivity", why, self.rates))
        return differences + _adjusted(overall)

    def _values(self, name: str, metric: str, rates: Sequence[float]) -> list[float]:
        """One number per seed: the mean over rates, or the sensitivity to the rate."""
        if metric == "sensitivity":
            return self.sensitivity(name)
        by_rate = zip(*(self.at(name, rate) for rate in rates), strict=True)
        return [fmean(getattr(run, metric) for run in runs) for runs in by_rate]

    def _difference(
        self,
        pair: Pair,
        metric: str,
        why: Silent | None,
        rates: Sequence[float],
        at: float | None = None,
    ) -> StabilityDifference:
        """The paired difference of two models at a rate, or of their means over rates."""
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
            "why": "" if why is None else why.value,
            "p_holm": None,
        }
        return cast(StabilityDifference, entry)


def _adjusted(family: list[StabilityDifference]) -> list[StabilityDifference]:
    """Add Holm's p-values. One seed has none. A difference with a reason counts with p = 1."""
    known = [(entry, p) for entry in family if (p := entry["p_value"]) is not None]
    adjusted = holm([1.0 if entry["why"] else p for entry, p in known])
    for (entry, _), p_holm in zip(known, adjusted, strict=True):
        entry["p_holm"] = p_holm
    return family


def statement(config: StabilityStudyConfig) -> str:
    """State the limits of the study."""
    size = heads_below(member.config.model for member in config.members())
    return (
        f"{size}What counts as a spike was fixed before the first run. All models read the same "
        "tokens at the same seed and step, so a hard batch raises the loss of all. The published "
        "reports are of models of billions of parameters: what is stable at one size may not be at "
        "another. "
        f"{spread(len(config.seeds))}"
    )
