"""What a gradient-flow study runs: models alike but for attention, over depth, width and λ_init."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar

from diffattn.lab.catalog.models import BASELINE, VARIANTS, WIDE, WITHOUT_NORM
from diffattn.lab.catalog.recipes.gradient_flow import GRADIENT_FLOW
from diffattn.lab.report.sections.gradient_flow_tables import BASE
from diffattn.lab.studies.study import (
    FixedRuns,
    Member,
    require,
    require_distinct,
    require_softmax,
)
from diffattn.lab.training.config import RunConfig
from diffattn.lab.training.settings import apply_settings
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
    BASELINE,
    WIDE,
    *(name for name in ATTENTION_TYPES if name != BASELINE),
    WITHOUT_NORM,
    SMALL_LAMBDA,
    LARGE_LAMBDA,
    HALVED,
)
"""Compared at the base's size."""
OF_ARMS = (BASELINE, WIDE, "diff")
"""Compared at the other sizes."""


@dataclass(frozen=True, kw_only=True, slots=True)
class GradientFlowConfig(FixedRuns):
    """What is compared. All models of an arm read the same tokens at the same seed and step."""

    kind: ClassVar[str] = "gradient-flow"
    shares_workers: ClassVar[bool] = True
    keeps_weights: ClassVar[bool] = False
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
        where, train = "GradientFlowConfig", self.base.train
        check_known(where, "match", self.match, MATCHES)
        require_softmax(where, "base", self.base.model)
        require_distinct(where, "seeds", self.seeds)
        steps = list(self.steps)
        rises = steps == sorted(set(steps)) and steps[0] >= 1 and steps[-1] <= train.num_steps
        bounds = f"from 1 or more to at most train.num_steps={train.num_steps}"
        require(
            where,
            (rises, f"the steps of phases must rise {bounds}", steps),
            (
                next(iter(self.arms), None) == BASE and LARGE_VALUES in self.arms,
                f"arms must begin with {BASE} and hold {LARGE_VALUES}",
                list(self.arms),
            ),
            (
                train.final_learning_rate > 0,
                "train.final_learning_rate must be above 0, as updates are measured per unit of it",
                train.final_learning_rate,
            ),
            (
                not self.base.guard.intervenes,
                "guard must be left at its defaults, as no measured step may be left out",
                self.base.guard,
            ),
        )
        self.members()  # whatever is wrong with a run is wrong now

    @property
    def steps(self) -> tuple[int, ...]:
        """The steps that are measured."""
        return tuple(step for phase in self.phases.values() for step in phase)

    def types(self, arm: str) -> tuple[str, ...]:
        """Names from :data:`diffattn.lab.catalog.models.VARIANTS` that an arm compares."""
        return OF_BASE if arm == BASE else OF_ARMS

    def members(self) -> list[Member]:
        """The runs, seed by seed."""
        members = []
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
                    members.append(Member.from_twin(run, twin))
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


def gradient_flow_study(
    scale: str,
    *,
    seeds: Sequence[int] | None = None,
    settings: Sequence[str] = (),
    match: str = "params",
) -> GradientFlowConfig:
    """A gradient-flow study of a scale; see :mod:`diffattn.lab.catalog.recipes.gradient_flow`.

    Arguments are those of :func:`diffattn.reproduce`.

    Raises:
        ConfigError: An unknown scale or setting, or seeds that are not distinct.
    """
    check_known("reproduce", "scale", scale, GRADIENT_FLOW)
    plan = GRADIENT_FLOW[scale]()
    return GradientFlowConfig(
        scale=scale,
        base=apply_settings(plan.run.config(), settings),
        arms=plan.arms,
        phases=plan.phases,
        seeds=plan.seeds if seeds is None else tuple(seeds),
        match=match,
    )
