"""The comparison on one GPU: models of 0.1B parameters."""

from diffattn.lab.catalog.recipes.plan import RunPlan
from diffattn.lab.training.config import DataConfig, TrainConfig
from diffattn.models.config.settings import ModelSettings


def workstation() -> RunPlan:
    """Softmax model of 0.12B parameters with 16 heads (8 DIFF heads) of width 64, 0.26B tokens.

    Command: ``diffattn reproduce text --scale workstation --set data.source=texts/``. Hardware: one
    GPU with bfloat16. Duration: 2e17 operations per run, 9 minutes at 0.35 PFLOP/s; not run by this
    project. Expected: whatever it says. Name a corpus of at least as many tokens: Python's own
    library, which is read unless another is named, is some hundred times smaller.
    """
    return RunPlan(
        name="workstation",
        model=ModelSettings(
            attention_type="softmax",
            vocab_size=16_384,
            hidden_size=1_024,
            num_hidden_layers=8,
            num_heads=16,
            head_dim=64,
            max_position_embeddings=1_024,
            embedding_multiplier=1_024**0.5,
            depth_scaled_init=True,
        ),
        train=TrainConfig(
            num_steps=2_000,
            batch_tokens=131_072,
            seq_len=1_024,
            micro_batch_sequences=16,
            learning_rate=6e-4,
            final_learning_rate=6e-5,
            warmup_steps=100,
            precision="bfloat16",
            log_every=20,
            evaluate_every=100,
            evaluation_tokens=524_288,
        ),
        data=DataConfig(source="python", vocab_size=16_384),
    )
