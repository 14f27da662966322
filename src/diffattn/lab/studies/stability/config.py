"""What a stability study runs: every model at every learning rate and seed."""

from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Any, ClassVar

from diffattn.lab.catalog.models import FLOOR, VARIANTS, WIDER_FLOOR, WITHOUT_NORM
from diffattn.lab.catalog.recipes.stability import STABILITY
from diffattn.lab.stats.spikes import WINDOW
from diffattn.lab.studies.study import (
    FixedRuns,
    Member,
    require,
    require_distinct,
    require_softmax,
)
from diffattn.lab.training.config import RunConfig
from diffattn.lab.training.settings import apply_settings
from diffattn.lab.training.stability import StabilityRun
from diffattn.models.config.attention_types import ATTENTION_TYPES
from diffattn.models.config.known_names import check_known
from diffattn.models.twins import MATCHES

WITH_NORM = "diff_v2_norm"
"""V2 with what its authors removed for stability's sake."""


@dataclass(frozen=True, kw_only=True, slots=True)
class StabilityStudyConfig(FixedRuns):
    """What is compared. All models read the same tokens at the same seed and step."""

    kind: ClassVar[str] = "stability"
    scale: str
    base: RunConfig
    """The softmax run; the others are its twins."""
    learning_rates: tuple[float, ...]
    """Peak rates; the final rate keeps its share of the peak."""
    seeds: tuple[int, ...] = (0, 1, 2)
    types: tuple[str, ...] = (*ATTENTION_TYPES, WITHOUT_NORM, WITH_NORM, FLOOR, WIDER_FLOOR)
    """Names from :data:`diffattn.lab.catalog.models.VARIANTS`: the papers' types, and the
    controls
    that tell a second map from a head norm, and a model that uses its context from those that do
    not."""
    match: str = "params"
    """What the twins keep equal: one of :data:`diffattn.models.twins.MATCHES`."""

    def __post_init__(self) -> None:
        where, train = "StabilityStudyConfig", self.base.train
        check_known(where, "match", self.match, MATCHES)
        for name in self.types:
            check_known(where, "type", name, VARIANTS)
        for name in ("learning_rates", "seeds", "types"):
            require_distinct(where, name, getattr(self, name))
        require_softmax(where, "base", self.base.model)
        require(
            where,
            (
                train.log_every == 1,
                "train.log_every must be 1, as a spike lasts a step",
                train.log_every,
            ),
            (
                train.num_steps > WINDOW,
                f"train.num_steps must be more than {WINDOW}, the steps that a step is compared "
                "with",
                train.num_steps,
            ),
            (
                not self.base.guard.intervenes,
                "guard must be left at its defaults, as spikes and divergence are counted",
                self.base.guard,
            ),
        )
        self.members()  # whatever is wrong with a run is wrong now

    def members(self) -> list[Member]:
        """The runs, seed by seed."""
        twins = {name: VARIANTS[name].twin(self.base.model, self.match) for name in self.types}
        given = {field.name: getattr(self.base, field.name) for field in fields(self.base)}
        members = []
        for seed in self.seeds:
            for rate in self.learning_rates:
                train = self.base.train.at(rate, seed)
                for name, twin in twins.items():
                    changes = {
                        "name": run_name(name, rate, seed),
                        "model": twin.config,
                        "train": train,
                    }
                    members.append(Member.from_twin(StabilityRun(**(given | changes)), twin))
        return members

    def resolved(self) -> dict[str, Any]:
        """All settings as plain values, for records."""
        return {
            "scale": self.scale,
            "types": list(self.types),
            "seeds": list(self.seeds),
            "learning_rates": list(self.learning_rates),
            "match": self.match,
            "config": self.base.resolved(),
        }


def run_name(model: str, rate: float, seed: int) -> str:
    """Name of a run, unique within its study."""
    return f"{model}-lr{rate:g}-seed{seed}"


def stability_study(
    scale: str,
    *,
    seeds: Sequence[int] | None = None,
    settings: Sequence[str] = (),
    match: str = "params",
) -> StabilityStudyConfig:
    """A stability study of a scale; see :mod:`diffattn.lab.catalog.recipes.stability`.

    Arguments are those of :func:`diffattn.reproduce`. Another ``train.learning_rate`` than the
    scale's changes all rates by as much.

    Raises:
        ConfigError: An unknown scale or setting, or seeds that are not distinct.
    """
    check_known("reproduce", "scale", scale, STABILITY)
    plan = STABILITY[scale]()
    base = apply_settings(plan.run.config(), settings)
    factor = base.train.learning_rate / plan.run.train.learning_rate
    return StabilityStudyConfig(
        scale=scale,
        base=base,
        learning_rates=tuple(factor * rate for rate in plan.learning_rates),
        seeds=plan.seeds if seeds is None else tuple(seeds),
        match=match,
    )
