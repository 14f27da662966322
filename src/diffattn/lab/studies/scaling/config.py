"""The runs of a scaling study: every model at every size, and one size at every token budget."""

from dataclasses import dataclass, replace
from functools import partial
from itertools import chain
from typing import Any

from diffattn.lab.catalog.models import VARIANTS
from diffattn.lab.catalog.recipes.scaling import SCALING_STUDIES
from diffattn.lab.records.fields import require
from diffattn.lab.studies.study import FixedStudy, Member
from diffattn.models.configuration_diff_transformer import DiffTransformerConfig


@dataclass(frozen=True, kw_only=True)
class ScalingStudyConfig(FixedStudy):
    """The runs of a scaling study. All models of a size and budget read the same tokens.

    ``base`` lies on both axes: budgets are compared at its size, sizes at its number of tokens.
    """

    kind: str = "scaling"
    widths: tuple[float, ...]
    """Hidden sizes divided by the base's. Heads and the FFN grow in proportion; head width and
    depth stay."""
    budgets: tuple[float, ...]
    """Numbers of steps divided by the base's. Each budget has its own full schedule."""
    types: tuple[str, ...]
    extrapolate: bool = False
    """Whether equivalents are read beyond the points of the fits. Not part of ``study.json``, so
    that a finished study can be judged again with another value."""

    @property
    def places(self) -> dict[str, list[tuple[float, float]]]:
        """Axis -> pairs of width and budget along it, rising."""
        sizes = [(width, 1.0) for width in sorted(self.widths)]
        return {"parameters": sizes, "tokens": [(1.0, budget) for budget in sorted(self.budgets)]}

    def model_at(self, width: float) -> DiffTransformerConfig:
        """The softmax model of a size; refused if heads or widths would not be whole."""
        base, whole = self.base.model, {}
        for name in ("hidden_size", "intermediate_size", "num_heads", "num_kv_heads"):
            size = getattr(base, name) * width
            must = f"{name} must be whole at every width, as at width {width:g}"
            require("ScalingStudyConfig", size == int(size), must, size)
            whole[name] = int(size)
        multiplier = base.embedding_multiplier * width**0.5  # if √hidden_size, it remains so
        settings = base.settings() | whole | {"embedding_multiplier": multiplier}
        return DiffTransformerConfig(**settings)

    def run_name(self, name: str, width: float, budget: float, seed: int) -> str:
        """Name of a run, unique within its study."""
        hidden, steps = self.base.model.hidden_size * width, self._steps(budget)
        return f"{name}-h{hidden:g}-s{steps}-seed{seed}"

    def tokens_at(self, budget: float) -> int:
        """Training tokens of a budget."""
        return self._steps(budget) * self.base.train.batch_tokens

    def _steps(self, budget: float) -> int:
        return round(self.base.train.num_steps * budget)

    def members(self) -> list[Member]:
        """The runs, seed by seed."""
        members = []
        for seed in self.seeds:
            for width, budget in dict.fromkeys(chain(*self.places.values())):
                base, steps = self.model_at(width), self._steps(budget)
                train = self.base.train.at(
                    # Equal for all types and budgets. The paper halves it at 1.6 times the width.
                    float(self.base.train.learning_rate * width**-0.5),
                    seed,
                    num_steps=steps,
                    evaluate_every=steps,
                    warmup_steps=round(self.base.train.warmup_steps * budget),
                )
                for name in self.types:
                    twin = VARIANTS[name].twin(base, self.match)
                    run_name = self.run_name(name, width, budget, seed)
                    run = replace(self.base, name=run_name, model=twin.config, train=train)
                    members.append(Member.from_twin(run, twin, records_divergence=True))
        return members

    def resolved(self) -> dict[str, Any]:
        """All settings as plain values, without ``extrapolate``."""
        resolved = super().resolved()
        del resolved["extrapolate"]
        return resolved


scaling_study = partial(ScalingStudyConfig.planned, SCALING_STUDIES)
"""Makes the study of a scale. Changed settings apply to the base, which sizes and budgets scale."""
