"""What a scaling study runs: every model at every size, and one size at every budget of tokens."""

from dataclasses import dataclass, replace
from typing import Any

from diffattn.errors import ConfigError
from diffattn.lab.stats.power_law import FORMS
from diffattn.lab.studies.variants import BASELINE, VARIANTS
from diffattn.lab.studies.workers import Member
from diffattn.lab.training.config import RunConfig
from diffattn.models.config.configuration_diff_transformer import DiffTransformerConfig
from diffattn.models.config.known_names import check_known
from diffattn.models.twins import MATCHES

FORM = "offset"
"""The paper's: L = a x^-b + c."""
SECOND_FORM = "kaplan"
"""L = a x^-b, of all models along an axis where the points of a compared one do not bend enough for
the paper's."""
LEAST = len(FORMS[FORM]) + 1
"""Sizes or budgets that a fit with an interval needs, be there one seed."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ScalingStudyConfig:
    """What is compared. All models of a size and budget read the same tokens at the same step."""

    scale: str
    base: RunConfig
    """The softmax run in the middle: budgets are compared at its size, sizes at its tokens."""
    widths: tuple[float, ...]
    """Hidden sizes as factors of the base's: heads of the same width, and the FFN, grow with it,
    depth does not."""
    budgets: tuple[float, ...]
    """Steps as factors of the base's; each is a run of its own with a whole schedule."""
    seeds: tuple[int, ...]
    types: tuple[str, ...]
    """Names from :data:`diffattn.lab.studies.variants.VARIANTS`."""
    match: str = "params"
    """What the twins keep equal: one of :data:`diffattn.models.twins.MATCHES`."""

    def __post_init__(self) -> None:
        check_known("ScalingStudyConfig", "match", self.match, MATCHES)
        for name in self.types:
            check_known("ScalingStudyConfig", "type", name, VARIANTS)
        for name, least in (("widths", LEAST), ("budgets", LEAST), ("seeds", 1), ("types", 1)):
            values = list(getattr(self, name))
            if len(values) < least or len(set(values)) != len(values):
                raise ConfigError(
                    f"ScalingStudyConfig: {name} must be distinct, {least} or more, got {values}."
                )
        for name in ("widths", "budgets"):
            factors = getattr(self, name)
            if 1.0 not in factors or min(factors) <= 0:
                raise ConfigError(
                    f"ScalingStudyConfig: {name} must be positive and hold 1, the base run, got "
                    f"{list(factors)}."
                )
        kind = self.base.model.attention_type
        if kind != BASELINE or BASELINE not in self.types:
            raise ConfigError(
                "ScalingStudyConfig: base must be a softmax model, whose twins are compared with "
                f"it, got {kind!r} and types {list(self.types)}."
            )
        self.members()  # whatever is wrong with one of them is wrong now

    @property
    def sizes(self) -> list[tuple[float, float]]:
        """Width and budget of the runs whose size varies, from the smallest up."""
        return [(width, 1.0) for width in sorted(self.widths)]

    @property
    def lengths(self) -> list[tuple[float, float]]:
        """Width and budget of the runs whose tokens vary, from the fewest up."""
        return [(1.0, budget) for budget in sorted(self.budgets)]

    def model_at(self, width: float) -> DiffTransformerConfig:
        """The softmax model of a size.

        Raises:
            ConfigError: Heads or widths would not be whole.
        """
        base = self.base.model
        sizes = {
            name: getattr(base, name) * width
            for name in ("hidden_size", "intermediate_size", "num_heads", "num_kv_heads")
        }
        for name, size in sizes.items():
            if size != int(size):
                raise ConfigError(
                    f"ScalingStudyConfig: {name} must be whole at every width, got {size:g} at "
                    f"{width:g}."
                )
        whole = {name: int(size) for name, size in sizes.items()}
        multiplier = base.embedding_multiplier * width**0.5  # √hidden_size stays that
        settings = base.settings() | whole | {"embedding_multiplier": multiplier}
        return DiffTransformerConfig(**settings)

    def rate_at(self, width: float) -> float:
        """Peak learning rate of a size, equal for all types and budgets.

        It falls with the root of the width. The paper halves it from 2.8B to 6.8B parameters,
        which is 1.6 times the width.
        """
        return float(self.base.train.learning_rate * width**-0.5)

    def run_name(self, name: str, width: float, budget: float, seed: int) -> str:
        """Name of a run, unique within its study."""
        hidden, steps = self.base.model.hidden_size * width, self._steps(budget)
        return f"{name}-h{hidden:g}-s{steps}-seed{seed}"

    def tokens_at(self, budget: float) -> int:
        """Training tokens of a budget."""
        return self._steps(budget) * self.base.train.batch_tokens

    def _steps(self, budget: float) -> int:
        return round(self.base.train.num_steps * budget)

    def members(self) -> list[Member[RunConfig]]:
        """The runs, seed by seed, so that an early stop leaves whole groups."""
        points = list(dict.fromkeys(self.sizes + self.lengths))
        members: list[Member[RunConfig]] = []
        for seed in self.seeds:
            for width, budget in points:
                base, steps = self.model_at(width), self._steps(budget)
                train = self.base.train.at(
                    self.rate_at(width), seed, num_steps=steps, evaluate_every=steps,
                    warmup_steps=round(self.base.train.warmup_steps * budget),
                )  # fmt: skip
                for name in self.types:
                    twin = VARIANTS[name].twin(base, self.match)
                    run = replace(
                        self.base,
                        name=self.run_name(name, width, budget, seed),
                        model=twin.config,
                        train=train,
                    )
                    members.append(Member.of(run, twin))
        return members

    def resolved(self) -> dict[str, Any]:
        """All settings as plain values, for records."""
        return {
            "scale": self.scale,
            "types": list(self.types),
            "seeds": list(self.seeds),
            "widths": list(self.widths),
            "budgets": list(self.budgets),
            "match": self.match,
            "config": self.base.resolved(),
        }
