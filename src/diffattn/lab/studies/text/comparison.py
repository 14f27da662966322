"""Matched models on the same tokens in the same order: the runs, and their learning rates."""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from types import MappingProxyType
from typing import Any

from diffattn.errors import ConfigError, check_known
from diffattn.lab.catalog.models import (
    BASELINE,
    FEW,
    GATE,
    RANKS_ALONE,
    STUDY_MODELS,
    SWEPT,
    SWEPT_ALONE,
    VARIANTS,
    gets_every_seed,
    rate_owner,
)
from diffattn.lab.catalog.recipes.catalog import SCALES, recipe
from diffattn.lab.records.fields import require
from diffattn.lab.studies.study import (
    PlannedRun,
    Results,
    Study,
    Wave,
    require_softmax,
    swept_rates,
)
from diffattn.lab.training.config import RunConfig
from diffattn.lab.training.settings import apply_settings, read_changes
from diffattn.models.twins import Twin

Tries = tuple[tuple[float, float | None], ...]
"""Pairs of a learning rate and a validation loss, ``None`` if the run diverged, by rising rate."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Sweep:
    """The learning rates that one variant has tried."""

    tried: Tries
    whole: Tries = ()
    """Of runs of all steps at the best swept rates."""

    @property
    def best(self) -> float:
        """The rate of the lowest loss, of whole runs if there are any."""
        return min(self.whole or self.tried, key=lambda entry: _order(entry[1]))[0]

    @property
    def inside(self) -> bool:
        """Whether a lower and a higher rate than the best one were tried."""
        return self.best not in (self.tried[0][0], self.tried[-1][0])

    def leading(self, count: int) -> list[float]:
        """The best rates of the short runs, best first."""
        tried = sorted(self.tried, key=lambda entry: _order(entry[1]))
        return [rate for rate, _ in tried[:count]]


def _order(loss: float | None) -> float:
    return math.inf if loss is None else loss


@dataclass(frozen=True, kw_only=True)
class ComparisonConfig(Study):
    """The variants of a study on text, with their seeds and learning rates."""

    kind: str = "text"
    """Key of :data:`diffattn.lab.catalog.models.STUDY_MODELS`."""
    base: RunConfig
    """The softmax run. Every other model is its twin."""
    variants: tuple[str, ...] = SWEPT
    seeds: tuple[int, ...] = (0, 1, 2)
    fewer_seeds: int = 3
    """How many seeds the variants get on which no verdict depends."""
    learning_rates: tuple[float, ...] = ()
    """Peak rates of the sweep. Empty: no sweep; the base's rate times ``rate_factors``."""
    rate_factors: Mapping[str, float] = field(default_factory=lambda: MappingProxyType({}))
    """Variant -> factor of the base's rate, as an earlier sweep chose it. Others have the factor of
    the variant whose rate they share (``rate_owner``), else 1."""
    own_rates: bool = False
    """Whether every variant is swept. Then none also runs at the common rate, the baseline's."""
    later: tuple[str, ...] = ()
    """Variants that are swept and trained after the first seed of all others."""
    sweep_seed: int = 1_000
    sweep_share: float = 0.25
    """Steps of a sweep run as a share of a whole run's; the schedule is shortened with them."""
    whole_rates: int = 0
    """How many of a sweep's best rates run again with all steps, on ``sweep_seed``, to choose among
    them. 0: the sweep chooses."""

    def __post_init__(self) -> None:
        super().__post_init__()
        where, windows = "ComparisonConfig", self.base.windows
        require_softmax(where, "base", self.base.model)
        must = "windows.documents must be 'joined', as the n-gram count models read them"
        require(where, not windows.apart, must, windows.documents)
        longer_than = windows.upsample_longer_than
        must = "windows.upsample_longer_than must not be set, as count models read a window once"
        require(where, longer_than is None, must, longer_than)
        is_new = self.sweep_seed not in self.seeds
        require(where, is_new, "sweep_seed must be none of the seeds", self.sweep_seed)
        self.trials(self.base_rates())  # a run that cannot be made is refused at once

    @property
    def shares_workers(self) -> bool:  # type: ignore[override]
        """Whether runs are short: the start of a process can take a fifth of a run."""
        return self.scale in ("smoke", "laptop", "lease")

    @property
    def always_workers(self) -> bool:  # type: ignore[override]
        """Not at scale ``lease``, where minutes count."""
        return self.scale != "lease"

    @property
    def swept(self) -> list[str]:
        """The variants whose learning rate is swept."""
        swept = self.variants if self.own_rates else (*SWEPT, *SWEPT_ALONE)
        return [name for name in self.variants if name in swept]

    def waves(self, results: Results) -> Iterator[Wave]:
        """The sweep; its best rates with all steps; the final runs. ``later`` variants are last."""
        if self.later:
            early = tuple(name for name in self.variants if name not in self.later)
            first = replace(self, variants=early, later=(), seeds=self.seeds[:1])
            yield from (replace(wave, total_steps=None) for wave in first.waves(results))
        while missing := self._missing_tries(results):
            yield Wave(missing, "learning rates")
        if self.whole_rates:
            yield Wave(self.whole_runs(self.sweeps(results)), "leading learning rates")
        sweeps = self.sweeps(results)
        trials = self.trials(best_rates(self, sweeps))
        yield Wave(trials, "comparison", self.steps_after(sweeps))

    def sweeps(self, results: Results) -> dict[str, Sweep]:
        """The sweep of every swept variant, as far as its runs are done."""
        sweeps = {}
        for name in self.swept if self.learning_rates else ():
            losses, _ = self._replay(name, results)
            tried = ((rate, None if loss == math.inf else loss) for rate, loss in losses.items())
            sweep = Sweep(tried=tuple(tried))
            whole = [
                (rate, results[run]["validation_loss"])
                for rate in sorted(sweep.leading(self.whole_rates))
                if (run := try_name(name, rate, self.sweep_seed, "whole")) in results
            ]
            sweeps[name] = replace(sweep, whole=tuple(whole))
        return sweeps

    def _missing_tries(self, results: Results) -> list[PlannedRun]:
        """The sweep's next runs; none once no best rate is at an edge, or it may not grow."""
        names = self.swept if self.learning_rates else []
        missing = {name: self._replay(name, results)[1] for name in names}
        steps, seed = self.sweep_steps, self.sweep_seed
        warmup = round(self.sweep_share * self.base.train.warmup_steps)
        changes = {"num_steps": steps, "warmup_steps": min(warmup, steps - 1)}
        return [
            self._run(name, try_name(name, rate, seed), seed, rate, **changes)
            for rate in sorted({rate for rates in missing.values() for rate in rates})
            for name in names
            if rate in missing[name]
        ]

    def _replay(self, name: str, results: Results) -> tuple[dict[float, float], list[float]]:
        """Rate to the loss of its run, as far as the sweep is done; and the rates still to try."""

        def score(rate: float) -> float | None:
            run = results.get(try_name(name, rate, self.sweep_seed))
            return None if run is None else _order(run["validation_loss"])

        return swept_rates(self.learning_rates, score, leading=max(1, self.whole_rates))

    def base_rates(self) -> dict[str, float]:
        """The learning rates without a sweep: the base's, times the variant's or owner's factor."""
        base, factors = self.base.train.learning_rate, self.rate_factors
        return {
            name: base * factors.get(name, factors.get(rate_owner(name), 1))
            for name in self.variants
        }

    def seeds_of(self, name: str) -> tuple[int, ...]:
        """The seeds of one variant."""
        return self.seeds if gets_every_seed(name) else self.seeds[: self.fewer_seeds]

    def whole_runs(self, sweeps: Mapping[str, Sweep]) -> list[PlannedRun]:
        """Runs of all steps at the best rates of each sweep, on ``sweep_seed``."""
        seed = self.sweep_seed
        return [
            self._run(name, try_name(name, rate, seed, "whole"), seed, rate)
            for name, sweep in sweeps.items()
            for rate in sweep.leading(self.whole_rates)
        ]

    def trials(self, rates: Mapping[str, float]) -> list[PlannedRun]:
        """The final runs: swept variants, then controls, then others, each group seed by seed.

        ``rates``: variant -> its best learning rate. The common one is the baseline's.
        """
        rest = [name for name in self.variants if name not in self.swept]
        controls = [name for name in rest if VARIANTS[name].role == "control"]
        others = [name for name in rest if name not in controls]
        at_common_too = () if self.own_rates else SWEPT
        return [
            self._run(name, trial_name(name, seed, common=at_common), seed, rate)
            for group in (self.swept, controls, others)
            for seed in self.seeds
            for name in group
            if seed in self.seeds_of(name)
            for at_common, rate in ((False, rates[name]), (True, rates[BASELINE]))
            if not at_common or (name in at_common_too and rates[name] != rates[BASELINE])
        ]

    def steps_of(self, run: str) -> int:
        """The steps of a run."""
        is_swept = run.endswith(f"-sweep{self.sweep_seed}")
        return self.sweep_steps if is_swept else self.base.train.num_steps

    @property
    def total_steps(self) -> int:
        """Steps of all runs, if no sweep has to grow and none chooses another rate."""
        return self.steps_after({})

    def steps_after(self, sweeps: Mapping[str, Sweep]) -> int:
        """Steps of all runs, where sweeps have been made."""
        trials = len(self.trials(best_rates(self, sweeps)))
        tried = len(self.learning_rates) * len(self.swept)
        if sweeps:
            tried = sum(len(sweep.tried) for sweep in sweeps.values())
        whole = self.whole_rates * len(self.swept)
        return (trials + whole) * self.base.train.num_steps + tried * self.sweep_steps

    def resolved(self) -> dict[str, Any]:
        """All settings as plain values, for records."""
        settings: dict[str, Any] = {} if self.kind == "text" else {"kind": self.kind}
        optional = ("whole_rates", "rate_factors", "own_rates", "later")
        given = super().resolved().items()
        return settings | {name: value for name, value in given if value or name not in optional}

    @property
    def sweep_steps(self) -> int:
        """Steps of a run of the sweep."""
        return max(1, round(self.sweep_share * self.base.train.num_steps))

    @cached_property
    def twins(self) -> dict[str, Twin]:
        """Variant -> its model."""
        return {x: VARIANTS[x].twin(self.base.model, self.match) for x in self.variants}

    def _run(self, variant: str, name: str, seed: int, rate: float, **changes: Any) -> PlannedRun:
        twin = self.twins[variant]
        train = self.base.train.at(rate, seed, **changes)
        config = replace(self.base, name=name, model=twin.config, train=train)
        return PlannedRun.from_twin(config, twin, records_divergence=True)


def trial_name(variant: str, seed: int, *, common: bool = False) -> str:
    """The name of a final run."""
    return f"{variant}{'-common' if common else ''}-seed{seed}"


def try_name(variant: str, rate: float, seed: int, part: str = "sweep") -> str:
    """The name of a run of the sweep, or with ``"whole"`` of all steps at one of its best rates."""
    return f"{variant}-lr{rate:g}-{part}{seed}"


def best_rates(config: ComparisonConfig, sweeps: Mapping[str, Sweep]) -> dict[str, float]:
    """The learning rate of every variant: from its sweep, or from that of its rate's owner."""
    if not sweeps:
        return config.base_rates()
    return {name: sweeps[rate_owner(name, config.swept)].best for name in config.variants}


_SCALES: dict[str, dict[str, Any]] = {
    "smoke": {"seeds": (0,), "variants": SWEPT},
    "laptop": {"seeds": (0,), "variants": FEW},
    "study": {
        "seeds": (0, 1, 2, 3, 4),
        "variants": STUDY_MODELS["text"],
        "learning_rates": (1e-3, 2e-3, 4e-3, 8e-3),
        "whole_rates": 2,
    },
    "workstation": {
        "seeds": (0, 1, 2),
        "variants": STUDY_MODELS["text"],
        "learning_rates": (3e-4, 6e-4, 1.2e-3, 2.4e-3),
        "whole_rates": 2,
    },
    "lease": {
        "seeds": (0, 1, 2),
        "variants": (BASELINE, GATE, "diff_v2", "diff", "shared_diff"),
        "later": ("shared_diff",),
        "learning_rates": (7.5e-4, 1.5e-3, 3e-3),
        "own_rates": True,
    },
}
"""Scale -> fields of its comparison besides the recipe."""
_ENGINE = {"lease": ("engine.save_every=1080", "engine.keep_checkpoints=1")}
"""Scale -> settings that do not change results. A checkpoint of a lease has 350 MB."""
_RATE_FACTORS = {"study": {"diff": 0.5, "shared_diff": 0.5}}
"""For ablations and ranks: factors of the base's rate, chosen by the sweep of the comparison on
text. At the base's rate Shared DIFF does not pass the induction phase in time."""
_SEEDS_OF_ROWS = {"smoke": 1, "laptop": 3}


def comparison(
    scale: str,
    *,
    kind: str = "text",
    seeds: Sequence[int] | None = None,
    settings: Sequence[str] = (),
    match: str = "params",
) -> ComparisonConfig:
    """A comparison of a scale. Arguments are those of :func:`diffattn.reproduce`."""
    check_known("reproduce", "scale", scale, SCALES)
    fields = _SCALES[scale]
    if kind != "text":
        alone = kind == "rank" and scale not in _SEEDS_OF_ROWS
        if seeds is None:
            seeds = range(_SEEDS_OF_ROWS.get(scale, 5))  # as in the committed record
        fields = {
            "variants": RANKS_ALONE if alone else STUDY_MODELS[kind],
            "fewer_seeds": max(1, len(seeds)),
            "rate_factors": _RATE_FACTORS.get(scale, {}),
        }
    if seeds is not None:
        fields = fields | {"seeds": tuple(seeds)}
    rate = read_changes(settings).get("train.learning_rate")
    if fields.get("learning_rates") and rate is not None:
        why = f"as scale {scale!r} sweeps the rates it tries"
        raise ConfigError(f"--set: train.learning_rate must not be set, {why}, got {rate}.")
    base = apply_settings(recipe(scale), [*_ENGINE.get(scale, ()), *settings])
    return ComparisonConfig(scale=scale, kind=kind, base=base, match=match, **fields)
