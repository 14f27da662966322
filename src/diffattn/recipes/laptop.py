"""A comparison for a coffee break on any machine."""

from diffattn.models.settings import ModelSettings
from diffattn.recipes.plan import RunPlan
from diffattn.training.config import DataConfig, TrainConfig


def laptop() -> RunPlan:
    """Softmax model of 0.9M parameters with 8 heads (4 DIFF heads), about 0.3M tokens.

    Command: ``diffattn reproduce``. Hardware: 2 CPU cores. Duration: under 10 minutes for four
    types and three seeds. Expected: losses that fall together; far below the papers' range.
    """
    return RunPlan(
        name="laptop",
        model=ModelSettings(
            attention_type="softmax",
            vocab_size=1_024,
            hidden_size=128,
            num_hidden_layers=4,
            num_heads=8,
            head_dim=16,
            max_position_embeddings=256,
        ),
        train=TrainConfig(
            num_steps=75,
            batch_tokens=4_096,
            seq_len=256,
            learning_rate=3e-3,
            final_learning_rate=3e-4,
            warmup_steps=10,
            log_every=5,
            evaluate_every=15,
        ),
        data=DataConfig(vocab_size=1_024),
    )
