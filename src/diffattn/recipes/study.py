"""The committed comparison: as large as two CPU cores do in an afternoon."""

from diffattn.models.settings import ModelSettings
from diffattn.recipes.plan import RunPlan
from diffattn.training.config import DataConfig, TrainConfig


def study() -> RunPlan:
    """Softmax model of 3.7M parameters with 16 heads (8 DIFF heads), 2M tokens per run.

    Command: ``diffattn reproduce --scale study``. Hardware: 2 CPU cores. Duration: hours for
    four types and three seeds. Expected: whatever the committed records say; eight DIFF heads
    is the smallest number the papers test, the token budget lies far below theirs.
    """
    return RunPlan(
        name="study",
        model=ModelSettings(
            attention_type="softmax",
            vocab_size=2_048,
            hidden_size=256,
            num_hidden_layers=4,
            num_heads=16,
            head_dim=16,
            max_position_embeddings=256,
        ),
        train=TrainConfig(
            num_steps=500,
            batch_tokens=4_096,
            seq_len=256,
            learning_rate=2e-3,
            final_learning_rate=2e-4,
            warmup_steps=40,
            precision="bfloat16",
            log_every=10,
            evaluate_every=50,
            evaluation_tokens=32_768,
        ),
        data=DataConfig(vocab_size=2_048),
    )
