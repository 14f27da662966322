"""Matched models, one per attention type and seed, on the same tokens in the same order."""

from dataclasses import dataclass, replace
from typing import Any

from diffattn.errors import ConfigError
from diffattn.models.attention_types import ATTENTION_TYPES
from diffattn.models.known_names import check_known
from diffattn.models.twins import MATCHES
from diffattn.studies.workers import Member
from diffattn.training.config import RunConfig


@dataclass(frozen=True, kw_only=True, slots=True)
class ComparisonConfig:
    """What is compared."""

    scale: str
    base: RunConfig
    """The softmax run; the others are its twins."""
    seeds: tuple[int, ...] = (0, 1, 2)
    types: tuple[str, ...] = ATTENTION_TYPES
    match: str = "params"
    """What the twins keep equal: ``"params"``, ``"heads"`` or ``"attention_flops"``."""

    def __post_init__(self) -> None:
        if self.base.model.attention_type != "softmax":
            raise ConfigError(
                "ComparisonConfig: base must be a softmax model, whose twins are compared, "
                f"got {self.base.model.attention_type!r}."
            )
        if not self.seeds or len(set(self.seeds)) != len(self.seeds):
            raise ConfigError(
                f"ComparisonConfig: seeds must be distinct whole numbers, one or more, "
                f"got {list(self.seeds)}."
            )
        check_known("ComparisonConfig", "match", self.match, MATCHES)
        self.members()  # whatever is wrong with one of them is wrong now

    def members(self) -> list[Member[RunConfig]]:
        """The runs, seed by seed, so that an early stop leaves whole pairs."""
        members = []
        twins = {name: self.base.model.twin(name, self.match) for name in self.types}
        for seed in self.seeds:
            for name, twin in twins.items():
                run = replace(
                    self.base,
                    name=f"{name}-seed{seed}",
                    model=twin.config,
                    train=replace(self.base.train, seed=seed, data_seed=seed),
                )
                members.append(Member.of(run, twin))
        return members

    def resolved(self) -> dict[str, Any]:
        """All settings as plain values, for records."""
        return {
            "scale": self.scale,
            "types": list(self.types),
            "seeds": list(self.seeds),
            "match": self.match,
            "config": self.base.resolved(),
        }
