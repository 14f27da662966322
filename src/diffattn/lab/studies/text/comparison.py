"""Matched models on the same tokens in the same order: which runs, and at which learning rates."""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Any

from diffattn.errors import ConfigError
from diffattn.lab.report.page.wording import WITH_EVERY_SEED
from diffattn.lab.studies.variants import BASELINE, SWEPT, VARIANTS, Variant, rate_owner
from diffattn.lab.studies.workers import Member
from diffattn.lab.training.config import RunConfig
from diffattn.models.config.known_names import check_known
from diffattn.models.twins import MATCHES

_EXTENSIONS = 3
"""Times that a sweep grows by a factor of 2 while one of its best rates lies at its edge."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ComparisonConfig:
    """What is compared."""

    scale: str
    kind: str = "text"
    """Key of :data:`diffattn.lab.studies.variants.MEMBERS`."""
    base: RunConfig
    """The softmax run; the others are its twins."""
    variants: tuple[str, ...] = SWEPT
    """Names from :data:`diffattn.lab.studies.variants.VARIANTS`."""
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
        where = type(self).__name__
        if self.base.model.attention_type != "softmax":
            raise ConfigError(
                f"{where}: base must be a softmax model, whose twins are compared, "
                f"got {self.base.model.attention_type!r}."
            )
        if self.base.windows.apart:
            raise ConfigError(
                f"{where}: windows.documents must be 'joined', as the models that count read them, "
                f"got {self.base.windows.documents!r}."
            )
        if self.base.windows.upsample_longer_than is not None:
            raise ConfigError(
                f"{where}: windows.upsample_longer_than must not be set, as the models that count "
                f"read every window alike, got {self.base.windows.upsample_longer_than}."
            )
        check_known(where, "match", self.match, MATCHES)
        for name in self.variants:
            check_known(where, "variant", name, VARIANTS)
        for name in ("variants", "seeds", "learning_rates"):
            values = getattr(self, name)
            if len(set(values)) != len(values) or (not values and name != "learning_rates"):
                raise ConfigError(
                    f"{where}: {name} must be distinct, one or more, got {list(values)}."
                )
        if BASELINE not in self.variants:
            raise ConfigError(
                f"{where}: variants must include {BASELINE!r}, got {list(self.variants)}."
            )
        missing = {rate_owner(name) for name in self.variants} - set(self.variants)
        if self.learning_rates and missing:
            raise ConfigError(
                f"{where}: variants must include those that decide rates, got no "
                f"{', '.join(sorted(missing))}."
            )
        known = set(SWEPT) - {BASELINE}
        right = set(self.rate_factors) <= known and all(x > 0 for x in self.rate_factors.values())
        if not right or (self.rate_factors and self.learning_rates):
            raise ConfigError(
                f"{where}: rate_factors must be positive, of {', '.join(sorted(known))}, and none "
                f"where learning_rates are swept, got {dict(self.rate_factors)}."
            )
        if self.sweep_seed in self.seeds:
            raise ConfigError(
                f"{where}: sweep_seed must be none of the seeds, got {self.sweep_seed}."
            )
        if not (0 < self.sweep_share <= 1 and self.fewer_seeds >= 1):
            raise ConfigError(
                f"{where}: sweep_share must be above 0 and at most 1, and fewer_seeds 1 or more, "
                f"got {self.sweep_share} and {self.fewer_seeds}."
            )
        if not 0 <= self.whole_rates <= len(self.learning_rates):
            raise ConfigError(
                f"{where}: whole_rates must be 0 to the number of learning_rates, "
                f"{len(self.learning_rates)}, got {self.whole_rates}."
            )
        self.trials(self.base_rates())  # whatever is wrong with one of them is wrong now
        self.sweep_members(self.learning_rates)

    def swept(self) -> list[Variant]:
        """The variants that get a rate of their own."""
        return [VARIANTS[name] for name in self.variants if name in SWEPT]

    def base_rates(self) -> dict[str, float]:
        """The base's rate times the factor of what decides: the rates where there is no sweep."""
        base = self.base.train.learning_rate
        return {name: base * self.rate_factors.get(rate_owner(name), 1) for name in self.variants}

    def seeds_of(self, name: str) -> tuple[int, ...]:
        """The seeds of one variant."""
        return self.seeds if name in WITH_EVERY_SEED else self.seeds[: self.fewer_seeds]

    def sweep_members(
        self, rates: Sequence[float], names: Sequence[str] | None = None
    ) -> list[Member[RunConfig]]:
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

    def whole_members(self, sweeps: "Mapping[str, Sweep]") -> list[Member[RunConfig]]:
        """Runs of all steps at the best rates of each sweep, on its seed."""
        return [
            self._member(VARIANTS[name], whole_name(name, rate, self.sweep_seed),
                         self.sweep_seed, rate)
            for name, sweep in sweeps.items()
            for rate in sweep.leading(self.whole_rates)
        ]  # fmt: skip

    def trials(self, rates: Mapping[str, float]) -> list[Member[RunConfig]]:
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

    def steps_of(self, run: str) -> int:
        """Steps of a run, by its name."""
        steps = self.base.train.num_steps
        return self._sweep_steps() if run.endswith(f"-sweep{self.sweep_seed}") else steps

    def total_steps(self, sweeps: "Mapping[str, Sweep] | None" = None) -> int:
        """Steps of all runs; before the sweeps, as if none had to grow and all had one best rate.

        Args:
            sweeps: What every swept variant has tried.
        """
        trials = len(self.trials(best_rates(self, sweeps or {})))
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
    ) -> Member[RunConfig]:
        twin = variant.twin(self.base.model, self.match)
        train = self.base.train.at(rate, seed, **changes)
        config = replace(self.base, name=name, model=twin.config, train=train)
        return Member.of(config, twin, records_divergence=True)


def trial_name(variant: str, seed: int, *, common: bool = False) -> str:
    """The name of a run that counts: at its variant's best rate, or at the common one."""
    return f"{variant}{'-common' if common else ''}-seed{seed}"


def sweep_name(variant: str, rate: float, seed: int) -> str:
    """The name of a run of the sweep."""
    return f"{variant}-lr{rate:g}-sweep{seed}"


def whole_name(variant: str, rate: float, seed: int) -> str:
    """The name of a run of all steps that decides between the sweep's best rates."""
    return f"{variant}-lr{rate:g}-whole{seed}"


@dataclass(frozen=True, kw_only=True, slots=True)
class Sweep:
    """What one variant has tried, and what that says."""

    tried: tuple[tuple[float, float | None], ...]
    """Learning rate and validation loss of short runs, by rate; ``None`` of one that diverged,
    which counts as infinite."""
    whole: tuple[tuple[float, float | None], ...] = ()
    """The same of runs of all steps, at the best of these rates."""

    @property
    def best(self) -> float:
        """The rate of the lowest loss, of whole runs if there are any; of equal ones the first."""
        return min(self.whole or self.tried, key=_loss)[0]

    @property
    def inside(self) -> bool:
        """Whether a lower and a higher rate than the best one were tried."""
        return self.best not in (self.tried[0][0], self.tried[-1][0])

    def leading(self, count: int) -> list[float]:
        """The best rates of the short runs, best first."""
        return [rate for rate, _ in sorted(self.tried, key=_loss)[:count]]

    def next_rate(self, count: int) -> float | None:
        """What to try next: twice or half of the first of the ``count`` best that is at the edge.

        Returns:
            ``None`` if all of them lie inside.
        """
        low, high = self.tried[0][0], self.tried[-1][0]
        for rate in self.leading(count):
            if rate in (low, high):
                return rate * 2 if rate == high else rate / 2
        return None


def _loss(one: tuple[float, float | None]) -> float:
    """Of a try, as far as its place among the others is concerned."""
    return math.inf if one[1] is None else one[1]


def rates_to_try(
    config: ComparisonConfig, sweeps: Mapping[str, Sweep]
) -> Iterator[tuple[str, float]]:
    """Variants with a rate to choose from at the edge, and the rate beyond, until enough are."""
    for name, sweep in sweeps.items():
        beyond = sweep.next_rate(max(1, config.whole_rates))
        if beyond and len(sweep.tried) < len(config.learning_rates) + _EXTENSIONS:
            yield name, beyond


def best_rates(config: ComparisonConfig, sweeps: Mapping[str, Sweep]) -> dict[str, float]:
    """The learning rate of every variant: its own best one, or that of what it is compared with."""
    if not sweeps:
        return config.base_rates()
    return {name: sweeps[rate_owner(name)].best for name in config.variants}
