"""The comparison at eight DIFF heads: as large as two CPU cores do in a day."""

from diffattn.lab.catalog.recipes.plan import RunPlan
from diffattn.lab.training.config import DataConfig, TrainConfig
from diffattn.models.config.settings import ModelSettings


def study() -> RunPlan:
    """Softmax model of 4.8M parameters with 16 heads (8 DIFF heads) of width 32, 4M tokens per run.

    Command: ``diffattn reproduce text --scale study``. Hardware: 2 CPU cores with instructions for
    bfloat16, in which products are taken as in the papers. Duration: about 30 core-hours for five
    seeds of types, controls and V2 without its difference, three of the rest, a sweep of learning
    rates and whole runs at its two best; it continues where it was stopped. Expected: what
    docs/findings/results.md says of the committed records: V2 some 0.2 nats below softmax
    attention, a third of it each by its gate, by second queries and by subtracting
    them. Eight DIFF heads is the smallest number the papers test, the token budget lies far
    below theirs.
    """
    return RunPlan(
        name="study",
        model=ModelSettings(
            attention_type="softmax",
            vocab_size=2_048,
            hidden_size=256,
            num_hidden_layers=4,
            num_heads=16,
            head_dim=32,
            max_position_embeddings=256,
            embedding_multiplier=256**0.5,
            depth_scaled_init=True,
        ),
        train=TrainConfig(
            num_steps=4_000,
            batch_tokens=1_024,
            seq_len=256,
            precision="bfloat16",
            learning_rate=2e-3,
            final_learning_rate=2e-4,
            warmup_steps=200,
            log_every=40,
            evaluate_every=200,
            evaluation_tokens=32_768,
        ),
        data=DataConfig(source="python", vocab_size=2_048),
    )
