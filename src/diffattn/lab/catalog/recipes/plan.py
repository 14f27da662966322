"""The plan of an experiment, which a recipe returns, and small siblings. Lists need no torch."""

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

from diffattn.lab.catalog.models import type_name
from diffattn.lab.training.config import DataConfig, RunConfig, TrainConfig, WindowConfig
from diffattn.models.config.settings import ModelSettings


def sane_start(hidden_size: int) -> dict[str, Any]:
    """Settings with which a model of any width starts at a loss near ln V and with small writes.

    The untied head has standard deviation 1/width. Other weights have 0.02, or 1/√width if that is
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
        changes = [f"rank {model.shared_rank}"] if model.uses("low_rank_maps") else []
        if model.head_norm is not None:
            changes.append("head norm" if model.head_norm else "no head norm")
        if model.lambda_init is not None:
            changes.append(f"λ_init {model.lambda_init}")
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


def softmax_run(
    name: str, data: DataConfig, model: dict[str, Any], train: dict[str, Any]
) -> RunPlan:
    """A softmax model with a sane start. The study makes the other models from it."""
    settings = ModelSettings(
        attention_type="softmax",
        vocab_size=data.vocab_size,
        max_position_embeddings=train["seq_len"],
        **sane_start(model["hidden_size"]) | model,
    )
    return RunPlan(name=name, model=settings, train=TrainConfig(**train), data=data)


StudyPlan = dict[str, Any]
"""Field of a study's configuration -> value. ``run`` is the :class:`RunPlan` of its base."""


def laptop_sibling(make: Callable[[], RunPlan], seq_len: int = 256) -> RunPlan:
    """A model of 0.4M to 7M parameters in place of a large one, 300 steps of 1,024 tokens.

    Hidden size and FFN are a sixteenth; head width, rank and layers are an eighth. Siblings of
    matched models match to 0.5 %. Attention type, norms, λ, rotary θ, up-sampling, Adam's β, weight
    decay and the ratio of last to peak learning rate are kept.

    Command: ``diffattn train NAME-laptop --out FOLDER``. A later stage needs ``--init-from`` with
    the sibling of the stage before it. Hardware: 2 CPU cores. Duration: minutes.
    Expected: the same code runs. A difference between siblings says nothing of the papers'.

    Source: arXiv:2410.05258v2 for the kept settings.
    """
    large, peak = make(), 3e-3  # the peak of the recipe ``laptop``
    train = replace(
        large.train,
        num_steps=300,
        warmup_steps=15,
        log_every=10,
        evaluate_every=50,
        batch_tokens=1_024,
        evaluation_tokens=16_384,
        seq_len=seq_len,
        micro_batch_sequences=None,
        learning_rate=peak,
        final_learning_rate=peak * large.train.final_learning_rate / large.train.learning_rate,
        precision="float32",
    )
    model = _small_model(large.model, seq_len)
    data = DataConfig(source="python", vocab_size=1_024)
    return replace(large, name=f"{large.name}-laptop", model=model, train=train, data=data)


def _small_model(large: ModelSettings, seq_len: int) -> ModelSettings:
    hidden_size, head_dim = large.hidden_size // 16, large.head_dim // 8
    # Width of all heads over hidden size, which the sibling keeps.
    share = large.num_heads * large.head_dim / large.hidden_size
    rank = max(1, (large.shared_rank or 0) // 8) if large.attention.low_rank_maps else None
    small = {
        "vocab_size": 1_024,
        "hidden_size": hidden_size,
        "intermediate_size": large.intermediate_size // 16,
        "num_hidden_layers": max(2, large.num_hidden_layers // 8),
        "num_heads": round(share * hidden_size / head_dim),
        "num_kv_heads": None,
        "head_dim": head_dim,
        "shared_rank": rank,
        "max_position_embeddings": seq_len,
    }
    return ModelSettings(**large.settings() | small | sane_start(hidden_size))
