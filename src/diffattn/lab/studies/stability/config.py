"""What a stability study runs: every model at every learning rate and seed."""

from dataclasses import dataclass, fields
from typing import Any

from diffattn.errors import ConfigError
from diffattn.lab.stats.spikes import WINDOW
from diffattn.lab.studies.variants import FLOOR, VARIANTS, WIDER_FLOOR, WITHOUT_NORM
from diffattn.lab.studies.workers import Member
from diffattn.lab.training.config import RunConfig
from diffattn.lab.training.stability import StabilityRun
from diffattn.models.config.attention_types import ATTENTION_TYPES
from diffattn.models.config.known_names import check_known
from diffattn.models.twins import MATCHES

WITH_NORM = "diff_v2_norm"
"""V2 with what its authors removed for stability's sake."""


@dataclass(frozen=True, kw_only=True, slots=True)
class StabilityStudyConfig:
    """What is compared. All models read the same tokens at the same seed and step."""

    scale: str
    base: RunConfig
    """The softmax run; the others are its twins."""
    learning_rates: tuple[float, ...]
    """Peak rates; the final rate keeps its share of the peak."""
    seeds: tuple[int, ...] = (0, 1, 2)
    types: tuple[str, ...] = (*ATTENTION_TYPES, WITHOUT_NORM, WITH_NORM, FLOOR, WIDER_FLOOR)
    """Names from :data:`diffattn.lab.studies.variants.VARIANTS`: the papers' types, and the
    controls
    that tell a second map from a head norm, and a model that uses its context from those that do
    not."""
    match: str = "params"
    """What the twins keep equal: one of :data:`diffattn.models.twins.MATCHES`."""

    def __post_init__(self) -> None:
        check_known("StabilityStudyConfig", "match", self.match, MATCHES)
        for name in self.types:
            check_known("StabilityStudyConfig", "type", name, VARIANTS)
        for name in ("learning_rates", "seeds", "types"):
            values = list(getattr(self, name))
            if not values or len(set(values)) != len(values):
                raise ConfigError(
                    f"StabilityStudyConfig: {name} must be distinct, one or more, got {values}."
                )
        train = self.base.train
        for holds, must, got in (
            (self.base.model.attention_type == "softmax",
             "base must be a softmax model, whose twins are compared",
             self.base.model.attention_type),
            (train.log_every == 1, "train.log_every must be 1, as a spike lasts a step",
             train.log_every),
            (train.num_steps > WINDOW, f"train.num_steps must be more than {WINDOW}, the steps "
             "that a step is compared with", train.num_steps),
            (not self.base.guard.intervenes, "guard must be left at its defaults, as "
             "spikes and divergence are counted", self.base.guard),
        ):  # fmt: skip
            if not holds:
                raise ConfigError(f"StabilityStudyConfig: {must}, got {got!r}.")
        self.members()  # whatever is wrong with one of them is wrong now

    def members(self) -> list[Member[RunConfig]]:
        """The runs, seed by seed, so that an early stop leaves whole groups."""
        twins = {name: VARIANTS[name].twin(self.base.model, self.match) for name in self.types}
        given = {field.name: getattr(self.base, field.name) for field in fields(self.base)}
        members: list[Member[RunConfig]] = []
        for seed in self.seeds:
            for rate in self.learning_rates:
                train = self.base.train.at(rate, seed)
                for name, twin in twins.items():
                    own = {"name": run_name(name, rate, seed), "model": twin.config, "train": train}
                    run = StabilityRun(**{**given, **own})
                    members.append(Member.of(run, twin))
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
