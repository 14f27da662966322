"""Scaling studies: small models of several sizes, and one size with several budgets of tokens."""

from collections.abc import Callable
from dataclasses import dataclass

from diffattn.lab.catalog.recipes.plan import RunPlan
from diffattn.lab.training.config import DataConfig, TrainConfig
from diffattn.models.config.settings import ModelSettings


@dataclass(frozen=True, kw_only=True, slots=True)
class ScalingPlan:
    """What a scaling study varies, and the softmax run that it starts from."""

    run: RunPlan
    """Its size is the one that budgets are compared at, its tokens those of all sizes."""
    widths: tuple[float, ...]
    """Hidden sizes as factors of the run's."""
    budgets: tuple[float, ...]
    """Steps as factors of the run's."""
    seeds: tuple[int, ...]
    types: tuple[str, ...]
    """Names of :mod:`diffattn.lab.catalog.models`."""


_CONTROLS = ("none", "softmax_minus_mean")
"""No attention, and the control that led the comparison of text: a second map that is blind."""


def smoke() -> ScalingPlan:
    """Tiny models of four sizes and budgets, 8 steps or so: checks the machinery, shows nothing.

    Command: ``diffattn reproduce scaling --scale smoke``. Hardware: 2 CPU cores. Duration: under a
    minute. Expected: fits refused, or with intervals that say nothing.
    """
    run = _run(
        "scaling-smoke", num_steps=8, batch_tokens=64, seq_len=32, vocab_size=512, hidden_size=16,
        num_hidden_layers=1, num_heads=4, head_dim=4,
    )  # fmt: skip
    factors = (0.5, 1.0, 1.5, 2.0)
    types = ("softmax", "diff", *_CONTROLS)
    return ScalingPlan(run=run, widths=factors, budgets=factors, seeds=(0,), types=types)


def laptop() -> ScalingPlan:
    """Five sizes over a factor of 15, four budgets over a factor of 8, 2 seeds.

    Command: ``diffattn reproduce scaling``. Hardware: 2 CPU cores. Duration: an hour of processor
    time. Expected: whatever the committed records say; the largest model has 5 DIFF heads, the
    papers' smallest 8, and a thousand times the parameters.
    """
    run = _run("scaling-laptop", num_steps=640, **_SIZE)
    return ScalingPlan(
        run=run,
        widths=(0.5, 1.0, 1.5, 2.0, 2.5),
        budgets=(0.25, 0.5, 1.0, 2.0),
        seeds=(0, 1),
        types=("softmax", "diff", "diff_v2", "shared_diff", *_CONTROLS),
    )


_SIZE: dict[str, int] = {
    "batch_tokens": 512,
    "seq_len": 128,
    "vocab_size": 1_024,
    "hidden_size": 64,
    "num_hidden_layers": 3,
    "num_heads": 4,
    "head_dim": 16,
}


def _run(
    name: str,
    *,
    num_steps: int,
    batch_tokens: int,
    seq_len: int,
    vocab_size: int,
    hidden_size: int,
    num_hidden_layers: int,
    num_heads: int,
    head_dim: int,
) -> RunPlan:
    """The softmax run, with the starting scale of the recipe ``laptop``."""
    peak = 3e-3 * (128 / hidden_size) ** 0.5
    return RunPlan(
        name=name,
        model=ModelSettings(
            attention_type="softmax",
            vocab_size=vocab_size,
            hidden_size=hidden_size,
            intermediate_size=hidden_size * 5 // 2,
            num_hidden_layers=num_hidden_layers,
            num_heads=num_heads,
            head_dim=head_dim,
            max_position_embeddings=seq_len,
            embedding_multiplier=hidden_size**0.5,
            depth_scaled_init=True,
        ),
        train=TrainConfig(
            num_steps=num_steps,
            batch_tokens=batch_tokens,
            seq_len=seq_len,
            learning_rate=peak,
            final_learning_rate=peak / 10,
            warmup_steps=num_steps // 20,
            evaluate_every=num_steps,
            evaluation_tokens=2 * seq_len,
        ),
        # A hundredth: every run reads all of it at its end.
        data=DataConfig(source="python", vocab_size=vocab_size, validation_fraction=0.01),
    )


SCALING_STUDIES: dict[str, Callable[[], ScalingPlan]] = {"smoke": smoke, "laptop": laptop}
"""Scale to the settings of its study."""
