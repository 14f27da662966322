"""The plan of an experiment, which a recipe returns. It can be listed without torch."""

from dataclasses import dataclass, field
from typing import Any

from diffattn.lab.catalog.models import type_name
from diffattn.lab.training.config import DataConfig, RunConfig, TrainConfig, WindowConfig
from diffattn.models.config.settings import ModelSettings


def sane_start(hidden_size: int) -> dict[str, Any]:
    """Settings with which a model of any width starts at a loss near ln V and with small writes.

    The untied head has standard deviation 1/width. Embeddings are multiplied by √width. Output
    projections are scaled by depth. Other weights have deviation 0.02, or 1/√width if that is
    smaller, so that no projection enlarges its input. docs/log.md lists the alternatives tried."""
    return {
        "initializer_range": min(0.02, hidden_size**-0.5),
        "tie_word_embeddings": False,
        "scaled_head_init": True,
        "embedding_multiplier": hidden_size**0.5,
        "depth_scaled_init": True,
    }


TIED_START = ["model.tie_word_embeddings=true", "model.scaled_head_init=false"]
"""Changes that restore the start of the studies of November 2026 in ``published/``, but recall."""


@dataclass(frozen=True, kw_only=True, slots=True)
class RunPlan:
    """The settings of a run. It loads without torch, but :meth:`config` needs torch."""

    name: str
    model: ModelSettings
    train: TrainConfig
    data: DataConfig
    windows: WindowConfig = field(default_factory=WindowConfig)

    @property
    def summary(self) -> str:
        """The model in a few words: its attention, and its settings that are not default."""
        model = self.model
        titles = [
            facts.control or type_name(facts.name).partition(" (")[0]
            for facts in dict.fromkeys(model.attention_by_layer)
        ]
        if len(titles) == 1 and model.attention.control:
            return titles[0]
        norm = {None: "", True: "head norm", False: "no head norm"}[model.head_norm]
        changes = [
            f"rank {model.shared_rank}" if model.uses("low_rank_maps") else "",
            norm,
            "" if model.lambda_init is None else f"λ_init {model.lambda_init}",
        ]
        changes = [change for change in changes if change]
        if model.attention_type == "softmax" or not changes:
            changes.insert(0, f"{model.num_heads} heads")
        return ", ".join([" and ".join(titles), *changes])

    def config(self) -> RunConfig:
        """The full configuration."""
        from diffattn.models.configuration_diff_transformer import DiffTransformerConfig

        return RunConfig(
            name=self.name,
            model=DiffTransformerConfig(**self.model.settings()),
            train=self.train,
            data=self.data,
            windows=self.windows,
        )


StudyPlan = dict[str, Any]
"""Field of a study's configuration -> value. ``run`` is the :class:`RunPlan` of its base."""
