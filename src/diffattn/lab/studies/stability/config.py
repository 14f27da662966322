"""The runs of a stability study: every model at every learning rate and seed."""

from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from itertools import product
from typing import Any

from diffattn.lab.catalog.models import (
    FLOOR,
    TYPES,
    V2_WITH_NORM,
    VARIANTS,
    WIDER_FLOOR,
    WITHOUT_NORM,
)
from diffattn.lab.catalog.recipes.stability import STABILITY
from diffattn.lab.records.fields import require
from diffattn.lab.stats.spikes import WINDOW
from diffattn.lab.studies.study import FixedStudy, Member
from diffattn.lab.training.run import StabilityRun


@dataclass(frozen=True, kw_only=True)
class StabilityStudyConfig(FixedStudy):
    """The runs of a stability study. All models read the same tokens at the same seed and step."""

    kind: str = "stability"
    learning_rates: tuple[float, ...]
    """Peak rates; the ratio of final to peak rate is kept."""
    types: tuple[str, ...] = (*TYPES, WITHOUT_NORM, V2_WITH_NORM, FLOOR, WIDER_FLOOR)
    """The controls separate the effect of a head norm from that of a second map, and show which
    models use their context."""

    def _check(self) -> None:
        where, train = "StabilityStudyConfig", self.base.train
        must = "train.log_every must be 1, as a spike lasts a step"
        require(where, train.log_every == 1, must, train.log_every)
        must = f"train.num_steps must be more than {WINDOW}, the steps that a step is compared with"
        require(where, train.num_steps > WINDOW, must, train.num_steps)
        must = "guard must be left at its defaults, as spikes and divergence are counted"
        require(where, not self.base.guard.intervenes, must, self.base.guard)

    def members(self) -> list[Member]:
        """The runs, seed by seed."""
        twins = {name: VARIANTS[name].twin(self.base.model, self.match) for name in self.types}
        given = {field.name: getattr(self.base, field.name) for field in fields(self.base)}
        members = []
        for seed, rate in product(self.seeds, self.learning_rates):
            train = self.base.train.at(rate, seed)
            for name, twin in twins.items():
                run = {"name": run_name(name, rate, seed), "model": twin.config, "train": train}
                members.append(Member.from_twin(StabilityRun(**given | run), twin))
        return members


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
