"""Small siblings of large experiments, for minutes on a laptop: same kind of model and schedule."""

from collections.abc import Callable
from dataclasses import replace

from diffattn.lab.catalog.recipes.plan import RunPlan, sane_start
from diffattn.lab.training.config import DataConfig
from diffattn.models.config.settings import ModelSettings

_HIDDEN_SHARE = 16
_SHARE = 8
"""Divisors: the first of hidden size and FFN; the second of head width, rank and layers."""


def laptop_sibling(make: Callable[[], RunPlan], seq_len: int = 256) -> RunPlan:
    """A model of 0.4M to 7M parameters in place of a large one, 300 steps of 1,024 tokens.

    Hidden size and FFN are a sixteenth; head width, rank and layers are an eighth. Siblings of
    matched models match to 0.5 %: norms, λ and rounding differ. Attention type, norms, λ, rotary
    θ, up-sampling, Adam's β, weight decay and the ratio of last to peak learning rate are kept.
    The other settings are chosen for a laptop; the peak rate is that of the recipe ``laptop``.

    Command: ``diffattn train NAME-laptop --out FOLDER``. A later stage needs ``--init-from`` with
    the sibling of the stage before it. Hardware: 2 CPU cores. Duration: minutes.
    Expected: the same code runs. Sizes and tokens lie far below the papers', so that a difference
    between siblings neither supports nor refutes the papers' differences.

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
    # Width of all heads over hidden size, which the sibling keeps.
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
