"""What a gradient-flow study runs: models alike but for attention, over depth, width and λ_init."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from diffattn.errors import ConfigError
from diffattn.lab.report.gradient_flow.files import BASE
from diffattn.lab.studies.variants import BASELINE, VARIANTS, WIDE, WITHOUT_NORM
from diffattn.lab.studies.workers import Member
from diffattn.lab.training.config import RunConfig
from diffattn.models.config.attention_types import ATTENTION_TYPES
from diffattn.models.config.configuration_diff_transformer import DiffTransformerConfig
from diffattn.models.config.known_names import check_known
from diffattn.models.twins import MATCHES

LARGE_VALUES = "large-values"
"""The arm whose values have size 1 at the start, as 0.02 gives them at a width of 2,500."""
HALVED = "softmax_half"
"""The control whose gradients are half of softmax attention's by construction."""
SMALL_LAMBDA, LARGE_LAMBDA = "diff_lambda_05", "diff_lambda_08"
OF_BASE = (
    BASELINE, WIDE, *(name for name in ATTENTION_TYPES if name != BASELINE), WITHOUT_NORM,
    SMALL_LAMBDA, LARGE_LAMBDA, HALVED,
)  # fmt: skip
"""Compared at the base's size."""
OF_ARMS = (BASELINE, WIDE, "diff")
"""Compared at the other sizes."""


@dataclass(frozen=True, kw_only=True, slots=True)
class GradientFlowConfig:
    """What is compared. All models of an arm read the same tokens at the same seed and step."""

    scale: str
    base: RunConfig
    """The softmax run with 2h heads of d; the others are made from it."""
    arms: Mapping[str, Mapping[str, Any]]
    """Name to changed settings of the softmax model; the first is :data:`BASE`, without any."""
    phases: Mapping[str, tuple[int, ...]]
    """Name to the steps that are averaged; the first is the start."""
    seeds: tuple[int, ...]
    match: str = "params"
    """What the twins keep equal: one of :data:`diffattn.models.twins.MATCHES`."""

    def __post_init__(self) -> None:
        check_known("GradientFlowConfig", "match", self.match, MATCHES)
        steps = [step for phase in self.phases.values() for step in phase]
        last = self.base.train.num_steps
        for holds, must, got in (
            (self.base.model.attention_type == BASELINE,
             "base must be a softmax model, whose twins are compared",
             self.base.model.attention_type),
            (len(self.seeds) and len(set(self.seeds)) == len(self.seeds),
             "seeds must be distinct, one or more", list(self.seeds)),
            (steps == sorted(set(steps)) and steps[0] >= 1 and steps[-1] <= last,
             f"the steps of phases must rise from 1 or more to at most train.num_steps={last}",
             steps),
            (next(iter(self.arms), None) == BASE and LARGE_VALUES in self.arms,
             f"arms must begin with {BASE} and hold {LARGE_VALUES}", list(self.arms)),
            (self.base.train.final_learning_rate > 0,
             "train.final_learning_rate must be above 0, as updates are measured per unit of it",
             self.base.train.final_learning_rate),
            (not self.base.guard.intervenes, "guard must be left at its defaults, as "
             "no measured step may be left out", self.base.guard),
        ):  # fmt: skip
            if not holds:
                raise ConfigError(f"GradientFlowConfig: {must}, got {got!r}.")
        self.members()  # whatever is wrong with one of them is wrong now

    @property
    def steps(self) -> tuple[int, ...]:
        """Those that are measured."""
        return tuple(step for phase in self.phases.values() for step in phase)

    def types(self, arm: str) -> tuple[str, ...]:
        """Names from :data:`diffattn.lab.studies.variants.VARIANTS` that an arm compares."""
        return OF_BASE if arm == BASE else OF_ARMS

    def members(self) -> list[Member[RunConfig]]:
        """The runs, seed by seed, so that an early stop leaves whole groups."""
        members: list[Member[RunConfig]] = []
        for seed in self.seeds:
            for arm, changes in self.arms.items():
                model = DiffTransformerConfig(**(self.base.model.settings() | dict(changes)))
                for name in self.types(arm):
                    twin = VARIANTS[name].twin(model, self.match)
                    run = replace(
                        self.base,
                        name=run_name(arm, name, seed),
                        model=twin.config,
                        train=self.base.train.at(self.base.train.learning_rate, seed),
                        gradient_steps=self.steps,
                    )
                    members.append(Member.of(run, twin))
        return members

    def resolved(self) -> dict[str, Any]:
        """All settings as plain values, for records."""
        return {
            "scale": self.scale,
            "types": list(OF_BASE),
            "types_of_arms": list(OF_ARMS),
            "arms": {name: dict(changes) for name, changes in self.arms.items()},
            "phases": {name: list(steps) for name, steps in self.phases.items()},
            "seeds": list(self.seeds),
            "match": self.match,
            "config": self.base.resolved(),
        }


def run_name(arm: str, model: str, seed: int) -> str:
    """Name of a run, unique within its study."""
    return f"{arm}-{model}-seed{seed}"
