"""Small siblings of large experiments: the same kind of model and schedule, minutes on a laptop."""

from collections.abc import Callable
from dataclasses import replace

from diffattn.lab.catalog.recipes.plan import RunPlan, sane_start
from diffattn.lab.training.config import DataConfig
from diffattn.models.config.settings import ModelSettings

_HIDDEN_SHARE = 16
_SHARE = 8
"""Divisors: of the hidden size; and of head width, rank and layers."""


def laptop_sibling(make: Callable[[], RunPlan], seq_len: int = 256) -> RunPlan:
    """A model of 0.4M to 7M parameters in place of the named one, 300 steps of 1,024 tokens.

    Hidden size and FFN are a sixteenth, head width, rank and layers are an eighth, so that siblings
    of matched models match but for norms, λ and rounding: to 0.5 %. Kept are attention type,
    norms, λ, rotary θ, up-sampling, β₂, weight decay and how far the learning rate falls; the rest
    is that of the recipe ``laptop``, peak rate included.

    Command: ``diffattn train NAME-laptop --out FOLDER``, of a later stage with ``--init-from`` the
    sibling of the stage before it. Hardware: 2 CPU cores. Duration: minutes.
    Expected: that the same code runs; sizes and tokens lie far below the papers', so no difference
    between siblings supports or refutes theirs.

    Source: arXiv:2410.05258v2 for the kept settings.
    """
    large = make()
    train = large.train
    peak = 3e-3
    return RunPlan(
        name=f"{large.name}-laptop",
        model=_small_model(large.model, seq_len),
        train=replace(
            train,
            num_steps=300,
            batch_tokens=1_024,
            seq_len=seq_len,
            micro_batch_sequences=None,
            learning_rate=peak,
            final_learning_rate=peak * train.final_learning_rate / train.learning_rate,
            warmup_steps=15,
            precision="float32",
            log_every=10,
            evaluate_every=50,
            evaluation_tokens=16_384,
        ),
        data=DataConfig(source="python", vocab_size=1_024),
        windows=large.windows,
    )


def _small_model(large: ModelSettings, seq_len: int) -> ModelSettings:
    facts = large.attention
    hidden_size = large.hidden_size // _HIDDEN_SHARE
    head_dim = large.head_dim // _SHARE
    # The large model's heads fill this share of its hidden size.
    share = large.num_heads * large.head_dim / large.hidden_size
    return ModelSettings(
        **large.settings()
        | {
            "vocab_size": 1_024,
            "hidden_size": hidden_size,
            "intermediate_size": large.intermediate_size // _HIDDEN_SHARE,
            "num_hidden_layers": max(2, large.num_hidden_layers // _SHARE),
            "num_heads": round(share * hidden_size / head_dim),
            "num_kv_heads": None,
            "head_dim": head_dim,
            "shared_rank": max(1, (large.shared_rank or 0) // _SHARE)
            if facts.low_rank_maps
            else None,
            "max_position_embeddings": seq_len,
        }
        | sane_start(hidden_size)
    )
