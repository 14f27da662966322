"""Stability studies: the same small models at learning rates from good to far too large."""

from collections.abc import Callable
from dataclasses import dataclass

from diffattn.models.settings import ModelSettings
from diffattn.recipes.plan import RunPlan
from diffattn.training.config import DataConfig, TrainConfig


@dataclass(frozen=True, kw_only=True, slots=True)
class StabilityPlan:
    """What a stability study varies, and the softmax run that it starts from."""

    run: RunPlan
    learning_rates: tuple[float, ...]
    """Evenly spaced in logarithm, from the one a study would take upwards."""
    seeds: tuple[int, ...]


def smoke() -> StabilityPlan:
    """Tiny models at two rates, 40 steps: checks the machinery, shows nothing else.

    Command: ``diffattn reproduce stability --scale smoke``. Hardware: 2 CPU cores. Duration: under
    a minute. Expected: at the larger rate, which is absurd, losses that rise.
    """
    run = _run(
        "stability-smoke", num_steps=40, batch_tokens=64, seq_len=32, vocab_size=512,
        hidden_size=16, num_hidden_layers=2, num_heads=4, head_dim=4, warmup_steps=4,
        evaluation_tokens=256,
    )  # fmt: skip
    return StabilityPlan(run=run, learning_rates=(2e-3, 2.0), seeds=(0,))


def laptop() -> StabilityPlan:
    """The study's models at its smallest and its largest rate, fewer steps, 3 seeds.

    Command: ``diffattn reproduce stability``. Hardware: 2 CPU cores. Duration: under 10 minutes.
    Expected: no loss spike, and fewer clipped steps at the larger rate, as in the committed study.
    """
    run = _run("stability-laptop", num_steps=100, **_SIZE)
    return StabilityPlan(run=run, learning_rates=(2e-3, 0.128), seeds=(0, 1, 2))


def study() -> StabilityPlan:
    """Four rates over a factor of 64, 5 seeds, 8 softmax heads (4 DIFF heads).

    Command: ``diffattn reproduce stability --scale study``. Hardware: 2 CPU cores. Duration: an
    hour and a half of processor time. Expected: whatever the committed records say; four DIFF heads
    are fewer than the papers', and their reports of spikes are of models of 7B parameters.
    """
    run = _run("stability-study", num_steps=200, **_SIZE)
    rates = (2e-3, 8e-3, 3.2e-2, 0.128)
    return StabilityPlan(run=run, learning_rates=rates, seeds=(0, 1, 2, 3, 4))


_SIZE: dict[str, int] = {
    "batch_tokens": 1_024,
    "seq_len": 256,
    "vocab_size": 1_024,
    "hidden_size": 128,
    "num_hidden_layers": 4,
    "num_heads": 8,
    "head_dim": 16,
    "warmup_steps": 20,
    "evaluation_tokens": 8_192,
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
    warmup_steps: int,
    evaluation_tokens: int,
) -> RunPlan:
    """The softmax run; the learning rate is replaced by those of the study."""
    return RunPlan(
        name=name,
        model=ModelSettings(
            attention_type="softmax",
            vocab_size=vocab_size,
            hidden_size=hidden_size,
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
            learning_rate=2e-3,
            final_learning_rate=2e-4,
            warmup_steps=warmup_steps,
            log_every=1,  # a spike lasts a step
            evaluate_every=num_steps,
            evaluation_tokens=evaluation_tokens,
        ),
        # A hundredth: every run reads all of it at its end.
        data=DataConfig(source="python", vocab_size=vocab_size, validation_fraction=0.01),
    )


STABILITY: dict[str, Callable[[], StabilityPlan]] = {
    "smoke": smoke,
    "laptop": laptop,
    "study": study,
}
"""Scale to the settings of its study."""
