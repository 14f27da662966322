"""The smallest comparison: does everything run here?"""

from diffattn.lab.catalog.recipes.plan import RunPlan
from diffattn.lab.training.config import DataConfig, TrainConfig
from diffattn.models.config.settings import ModelSettings


def smoke() -> RunPlan:
    """Softmax model of 0.14M parameters, 20 steps: checks the machinery, shows nothing else.

    Command: ``diffattn reproduce text --scale smoke``. Hardware: 2 CPU cores. Duration: under a
    minute for all four types. Expected: losses near 5.5 nats, alike for all four types.
    """
    return RunPlan(
        name="smoke",
        model=ModelSettings(
            attention_type="softmax",
            vocab_size=512,
            hidden_size=64,
            num_hidden_layers=2,
            num_heads=4,
            head_dim=16,
            max_position_embeddings=128,
            embedding_multiplier=64**0.5,
            depth_scaled_init=True,
        ),
        train=TrainConfig(
            num_steps=20,
            batch_tokens=1_024,
            seq_len=128,
            learning_rate=3e-3,
            final_learning_rate=3e-4,
            warmup_steps=4,
            log_every=5,
            evaluate_every=10,
            evaluation_tokens=4_096,
        ),
        data=DataConfig(vocab_size=512),
    )
