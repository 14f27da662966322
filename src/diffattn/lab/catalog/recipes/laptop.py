"""A comparison for a coffee break on any machine."""

from diffattn.lab.catalog.recipes.plan import RunPlan
from diffattn.lab.training.config import DataConfig, TrainConfig
from diffattn.models.config.settings import ModelSettings


def laptop() -> RunPlan:
    """Softmax model of 0.9M parameters with 8 heads (4 DIFF heads), about 0.5M tokens.

    Command: ``diffattn reproduce text``. Hardware: 2 CPU cores. Duration: 7 to 10 minutes for four
    types and their controls, one seed each. Expected: losses near 4.1, no attention clearly
    behind; far below the papers' range.
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
            embedding_multiplier=128**0.5,
            depth_scaled_init=True,
        ),
        train=TrainConfig(
            num_steps=500,
            batch_tokens=1_024,
            seq_len=256,
            learning_rate=3e-3,
            final_learning_rate=3e-4,
            warmup_steps=25,
            log_every=10,
            evaluate_every=50,
            evaluation_tokens=8_192,
        ),
        data=DataConfig(source="python", vocab_size=1_024),
    )
