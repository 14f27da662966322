"""Matched models on the same tokens in the same order: which runs, and at which learning rates."""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Any, ClassVar

from diffattn.lab.catalog.models import (
    BASELINE,
    SWEPT,
    VARIANTS,
    Variant,
    gets_every_seed,
    rate_owner,
)
from diffattn.lab.studies.study import (
    Member,
    Results,
    Wave,
    require,
    require_distinct,
    require_softmax,
)
from diffattn.lab.studies.sweep import swept_rates
from diffattn.lab.training.config import RunConfig
from diffattn.models.config.known_names import check_known
from diffattn.models.twins import MATCHES

_SHORT = ("smoke", "laptop")
"""Scales whose runs share processes: to start one can take a fifth of a run's time."""
Tries = tuple[tuple[float, float | None], ...]
"""Learning rate and validation loss, by rate; ``None`` of a run that diverged, which counts as
infinite."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Sweep:
    """The learning rates that one variant has tried."""

    tried: Tries
    """Of short runs."""
    whole: Tries = ()
    """Of runs of all steps, at the best of these rates."""

    @property
    def best(self) -> float:
        """The rate of the lowest loss, of whole runs if there are any; of equal ones the first."""
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


@dataclass(frozen=True, kw_only=True, slots=True)
class ComparisonConfig:
    """What is compared."""

    always_workers: ClassVar[bool] = True
    keeps_weights: ClassVar[bool] = True
    scale: str
    kind: str = "text"
    """Key of :data:`diffattn.lab.catalog.models.MEMBERS`."""
    base: RunConfig
    """The softmax run; the others are its twins."""
    variants: tuple[str, ...] = SWEPT
    """Names from :data:`diffattn.lab.catalog.models.VARIANTS`."""
    seeds: tuple[int, ...] = (0, 1, 2)
    """Of initial weights and data order."""
    fewer_seeds: int = 3
    """How many of them ablations and other matches get. Controls get all, and so do types without
    their difference: they decide what a type's lead means."""
    match: str = "params"
    """What the twins keep equal: one of :data:`diffattn.models.twins.MATCHES`."""
    learning_rates: tuple[float, ...] = ()
    """Peak rates of the sweep. Empty: one rate for all, the base's."""
    rate_factors: Mapping[str, float] = field(default_factory=lambda: MappingProxyType({}))
    """Without a sweep: times the base's rate, of variants for which another study chose that."""
    sweep_seed: int = 1_000
    """None of ``seeds``."""
    sweep_share: float = 0.25
    """Steps of a sweep run as a share of a whole run's; the schedule is shortened with them."""
    whole_rates: int = 0
    """How many of a sweep's best rates are tried again with all steps, on its seed, before the best
    of these is chosen: which rate is best may change with the length. 0: the sweep chooses."""

    def __post_init__(self) -> None:
        where, windows = "ComparisonConfig", self.base.windows
        require_softmax(where, "base", self.base.model)
        check_known(where, "match", self.match, MATCHES)
        for name in self.variants:
            check_known(where, "variant", name, VARIANTS)
        require_distinct(where, "variants", self.variants)
        require_distinct(where, "seeds", self.seeds)
        require_distinct(where, "learning_rates", self.learning_rates, least=0)
        swept = bool(self.learning_rates)
        owners = {rate_owner(name) for name in self.variants} if swept else set()
        scaled = set(SWEPT) - {BASELINE}
        factors = dict(self.rate_factors)
        factors_hold = set(factors) <= scaled and all(x > 0 for x in factors.values())
        require(
            where,
            (
                not windows.apart,
                "windows.documents must be 'joined', as the models that count read them",
                windows.documents,
            ),
            (
                windows.upsample_longer_than is None,
                "windows.upsample_longer_than must not be set, as the models that count read every "
                "window alike",
                windows.upsample_longer_than,
            ),
            (
                BASELINE in self.variants,
                f"variants must include {BASELINE!r}",
                list(self.variants),
            ),
            (
                owners <= set(self.variants),
                f"variants must include those that decide rates, {', '.join(sorted(owners))}",
                list(self.variants),
            ),
            (
                factors_hold and not (factors and swept),
                f"rate_factors must be positive, of {', '.join(sorted(scaled))}, and none where "
                "learning_rates are swept",
                factors,
            ),
            (
                self.sweep_seed not in self.seeds,
                "sweep_seed must be none of the seeds",
                self.sweep_seed,
            ),
            (
                0 < self.sweep_share <= 1,
                "sweep_share must be above 0 and at most 1",
                self.sweep_share,
            ),
            (self.fewer_seeds >= 1, "fewer_seeds must be 1 or more", self.fewer_seeds),
            (
                0 <= self.whole_rates <= len(self.learning_rates),
                f"whole_rates must be 0 to the number of learning_rates, "
                f"{len(self.learning_rates)}",
                self.whole_rates,
            ),
        )
        self.trials(self.base_rates())  # whatever is wrong with a run is wrong now
        self.sweep_members(self.learning_rates)

    @property
    def shares_workers(self) -> bool:
        """Whether a worker makes several runs."""
        return self.scale in _SHORT

    def waves(self, results: Results) -> Iterator[Wave]:
        """The sweep, wave by wave; its leading rates with all steps; then the runs that count."""
        while wanted := self._wanted(results):
            yield Wave(wanted, "learning rates")
        if self.whole_rates:
            yield Wave(self.whole_members(self.sweeps(results)), "leading learning rates")
        sweeps = self.sweeps(results)
        trials = self.trials(best_rates(self, sweeps))
        yield Wave(trials, "comparison", self.steps_after(sweeps))

    def sweeps(self, results: Results) -> dict[str, Sweep]:
        """The sweep of every swept variant, as far as its runs are done; none without rates."""
        sweeps = {}
        for name in self._sweeping:
            tried, _ = self._replay(name, results)
            sweep = Sweep(tried=tuple((rate, loss) for rate, (loss,) in tried.items()))
            rates = sorted(sweep.leading(self.whole_rates))
            runs = {rate: whole_name(name, rate, self.sweep_seed) for rate in rates}
            whole = [
                (r, results[run]["validation_loss"]) for r, run in runs.items() if run in results
            ]
            sweeps[name] = replace(sweep, whole=tuple(whole))
        return sweeps

    @property
    def _sweeping(self) -> list[str]:
        return [variant.name for variant in self.swept()] if self.learning_rates else []

    def _wanted(self, results: Results) -> list[Member]:
        """The sweep's next runs; none when the rates to choose from lie inside every sweep."""
        missing = {name: self._replay(name, results)[1] for name in self._sweeping}
        return [
            member
            for rate in sorted({rate for rates in missing.values() for rate in rates})
            for member in self.sweep_members([rate], [n for n in missing if rate in missing[n]])
        ]

    def _replay(
        self, name: str, results: Results
    ) -> tuple[dict[float, tuple[float | None]], list[float]]:
        """Rate to the loss of its run, as far as the sweep is done; and the rates still to try."""

        def score(rate: float) -> tuple[float | None] | None:
            run = results.get(sweep_name(name, rate, self.sweep_seed))
            return None if run is None else (run["validation_loss"],)

        leading = max(1, self.whole_rates)
        return swept_rates(
            self.learning_rates, score, lambda entry: _order(entry[0]), leading=leading
        )

    def swept(self) -> list[Variant]:
        """The variants that get a rate of their own."""
        return [VARIANTS[name] for name in self.variants if name in SWEPT]

    def base_rates(self) -> dict[str, float]:
        """The base's rate times the factor of what decides: the rates where there is no sweep."""
        base = self.base.train.learning_rate
        return {name: base * self.rate_factors.get(rate_owner(name), 1) for name in self.variants}

    def seeds_of(self, name: str) -> tuple[int, ...]:
        """The seeds of one variant."""
        return self.seeds if gets_every_seed(name) else self.seeds[: self.fewer_seeds]

    def sweep_members(
        self, rates: Sequence[float], names: Sequence[str] | None = None
    ) -> list[Member]:
        """Runs of the sweep at ``rates``, of the named variants or all that are swept."""
        steps = self._sweep_steps()
        warmup = round(self.sweep_share * self.base.train.warmup_steps)
        changes = {"num_steps": steps, "warmup_steps": min(warmup, steps - 1)}
        return [
            self._member(variant, sweep_name(variant.name, rate, self.sweep_seed),
                         self.sweep_seed, rate, **changes)
            for rate in rates
            for variant in self.swept()
            if names is None or variant.name in names
        ]  # fmt: skip

    def whole_members(self, sweeps: Mapping[str, Sweep]) -> list[Member]:
        """Runs of all steps at the best rates of each sweep, on its seed."""
        return [
            self._member(VARIANTS[name], whole_name(name, rate, self.sweep_seed),
                         self.sweep_seed, rate)
            for name, sweep in sweeps.items()
            for rate in sweep.leading(self.whole_rates)
        ]  # fmt: skip

    def trials(self, rates: Mapping[str, float]) -> list[Member]:
        """The runs that count, seed by seed, so that an early stop leaves whole groups.

        Those with a sweep of their own come first, then the controls.

        Args:
            rates: Variant to its best learning rate. The common one is the baseline's.
        """
        swept = [name for name in self.variants if name in SWEPT]
        rest = [name for name in self.variants if name not in SWEPT]
        controls = [name for name in rest if VARIANTS[name].role == "control"]
        others = [name for name in rest if name not in controls]
        return [
            self._member(VARIANTS[name], trial_name(name, seed, common=at_common), seed, rate)
            for group in (swept, controls, others)
            for seed in self.seeds
            for name in group
            if seed in self.seeds_of(name)
            for at_common, rate in ((False, rates[name]), (True, rates[BASELINE]))
            if not at_common or (name in SWEPT and rates[name] != rates[BASELINE])
        ]

    def steps_by_run(self) -> Callable[[str], int]:
        """From the name of a run to its steps."""
        steps, of_sweep = self.base.train.num_steps, self._sweep_steps()
        ending = f"-sweep{self.sweep_seed}"
        return lambda run: of_sweep if run.endswith(ending) else steps

    @property
    def total_steps(self) -> int:
        """Steps of all runs, as if no sweep had to grow and all had one best rate."""
        return self.steps_after({})

    def steps_after(self, sweeps: Mapping[str, Sweep]) -> int:
        """Steps of all runs, where sweeps have been made.

        Args:
            sweeps: Swept variant to its sweep; empty before.
        """
        trials = len(self.trials(best_rates(self, sweeps)))
        tried = len(self.sweep_members(self.learning_rates))
        if sweeps:
            tried = sum(len(sweep.tried) for sweep in sweeps.values())
        whole = self.whole_rates * len(self.swept())
        return (trials + whole) * self.base.train.num_steps + tried * self._sweep_steps()

    def resolved(self) -> dict[str, Any]:
        """All settings as plain values, for records."""
        kind = {} if self.kind == "text" else {"kind": self.kind}
        return (
            kind
            | {
                "scale": self.scale,
                "variants": list(self.variants),
                "seeds": list(self.seeds),
                "fewer_seeds": self.fewer_seeds,
                "match": self.match,
                "learning_rates": list(self.learning_rates),
                "sweep_seed": self.sweep_seed,
                "sweep_share": self.sweep_share,
                "config": self.base.resolved(),
            }
            | ({"whole_rates": self.whole_rates} if self.whole_rates else {})
            | ({"rate_factors": dict(self.rate_factors)} if self.rate_factors else {})
        )

    def _sweep_steps(self) -> int:
        return max(1, round(self.sweep_share * self.base.train.num_steps))

    def _member(
        self, variant: Variant, name: str, seed: int, rate: float, **changes: Any
    ) -> Member:
        twin = variant.twin(self.base.model, self.match)
        train = self.base.train.at(rate, seed, **changes)
        config = replace(self.base, name=name, model=twin.config, train=train)
        return Member.from_twin(config, twin, records_divergence=True)


def trial_name(variant: str, seed: int, *, common: bool = False) -> str:
    """The name of a run that counts: at its variant's best rate, or at the common one."""
    return f"{variant}{'-common' if common else ''}-seed{seed}"


def sweep_name(variant: str, rate: float, seed: int) -> str:
    """The name of a run of the sweep."""
    return f"{variant}-lr{rate:g}-sweep{seed}"


def whole_name(variant: str, rate: float, seed: int) -> str:
    """The name of a run of all steps that decides between the sweep's best rates."""
    return f"{variant}-lr{rate:g}-whole{seed}"


def best_rates(config: ComparisonConfig, sweeps: Mapping[str, Sweep]) -> dict[str, float]:
    """The learning rate of every variant: its own best one, or that of what it is compared with."""
    if not sweeps:
        return config.base_rates()
    return {name: sweeps[rate_owner(name)].best for name in config.variants}
