"""The runs of a gradient-flow study: models that differ in attention, over depth and width."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, ClassVar

from diffattn.lab.catalog.models import BASELINE, TYPES, VARIANTS, WIDE, WITHOUT_NORM
from diffattn.lab.catalog.recipes.gradient_flow import GRADIENT_FLOW
from diffattn.lab.records.fields import require
from diffattn.lab.report.sections.gradient_flow import BASE
from diffattn.lab.studies.study import FixedStudy, Member
from diffattn.models.configuration_diff_transformer import DiffTransformerConfig

LARGE_VALUES = "large-values"
"""Name of the arm whose values have size 1 at the start, as at a width of 2,500 with std 0.02."""
HALVED = "softmax_half"
"""The control whose gradients are half of softmax attention's by construction."""
SMALL_LAMBDA, LARGE_LAMBDA = "diff_lambda_05", "diff_lambda_08"
OF_BASE = (BASELINE, WIDE, *TYPES[1:], WITHOUT_NORM, SMALL_LAMBDA, LARGE_LAMBDA, HALVED)
OF_ARMS = (BASELINE, WIDE, "diff")


@dataclass(frozen=True, kw_only=True)
class GradientFlowConfig(FixedStudy):
    """The runs of a gradient-flow study. All models of an arm read the same tokens at each step.

    ``base`` is the softmax run with 2h heads of width d.
    """

    shares_workers: ClassVar[bool] = True
    kind: str = "gradient-flow"
    arms: Mapping[str, Mapping[str, Any]]
    """Name -> changed settings of the softmax model. The first is :data:`BASE`, with no change."""
    phases: Mapping[str, tuple[int, ...]]
    """Name -> steps, counted from 1, that are averaged. The first phase is the start."""

    def _check(self) -> None:
        where, last = "GradientFlowConfig", self.base.train.num_steps
        must = f"the steps of phases must be at most train.num_steps={last}"
        require(where, self.steps[-1] <= last, must, list(self.steps))
        rate = self.base.train.final_learning_rate
        must = "train.final_learning_rate must be above 0, as updates are measured per unit of it"
        require(where, rate > 0, must, rate)
        must = "guard must be left at its defaults, as no measured step may be left out"
        require(where, not self.base.guard.intervenes, must, self.base.guard)

    @property
    def steps(self) -> tuple[int, ...]:
        """All steps that are measured, phase by phase."""
        return tuple(step for phase in self.phases.values() for step in phase)

    def keeps_weights(self, run: str) -> bool:
        """No run keeps its weights: gradients are measured during training."""
        return False

    def types(self, arm: str) -> tuple[str, ...]:
        """Names of the variants that an arm compares."""
        return OF_BASE if arm == BASE else OF_ARMS

    def members(self) -> list[Member]:
        """The runs, seed by seed."""
        members = []
        for seed in self.seeds:
            train = self.base.train.at(self.base.train.learning_rate, seed)
            base = replace(self.base, train=train, gradient_steps=self.steps)
            for arm, changes in self.arms.items():
                model = DiffTransformerConfig(**(base.model.settings() | dict(changes)))
                for name in self.types(arm):
                    twin = VARIANTS[name].twin(model, self.match)
                    run = replace(base, name=run_name(arm, name, seed), model=twin.config)
                    members.append(Member.from_twin(run, twin))
        return members

    def resolved(self) -> dict[str, Any]:
        """All settings as plain values."""
        return super().resolved() | {"types": list(OF_BASE), "types_of_arms": list(OF_ARMS)}


def run_name(arm: str, model: str, seed: int) -> str:
    """Name of a run, unique within its study."""
    return f"{arm}-{model}-seed{seed}"


gradient_flow_study = partial(GradientFlowConfig.planned, GRADIENT_FLOW)
