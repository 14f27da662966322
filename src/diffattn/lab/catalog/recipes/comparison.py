"""The softmax models of the comparisons on text, by scale; the other models are their twins."""

from collections.abc import Callable

from diffattn.lab.catalog.recipes.plan import RunPlan, softmax_run
from diffattn.lab.training.config import DataConfig


def smoke() -> RunPlan:
    """Softmax model of 0.17M parameters, 20 steps: checks that everything runs.

    Command: ``diffattn reproduce text --scale smoke``. Hardware: 2 CPU cores. Duration: under a
    minute for all four types. Expected: losses near 5.5 nats, alike for all four types.
    """
    pace = {"num_steps": 20, "warmup_steps": 4, "log_every": 5, "evaluate_every": 10}
    tokens = {"batch_tokens": 1_024, "seq_len": 128, "evaluation_tokens": 4_096}
    rates = {"learning_rate": 3e-3, "final_learning_rate": 3e-4}
    model = {"hidden_size": 64, "num_hidden_layers": 2, "num_heads": 4, "head_dim": 16}
    return softmax_run("smoke", DataConfig(vocab_size=512), model, {**pace, **tokens, **rates})


def laptop() -> RunPlan:
    """Softmax model of 0.79M parameters with 8 heads (4 DIFF heads), 1M tokens, bytes.

    With bytes as tokens, minutes of training beat the n-gram count models (2.43 nats per byte).
    Embeddings are tied: with so few tokens an untied head has a higher loss (docs/log.md).

    Command: ``diffattn reproduce text``. Hardware: 2 CPU cores. Duration: 3 to 4 minutes for the
    Transformer, DIFF V2 and its gate on one map, one seed each. Expected: losses near 1.8 nats per
    byte. The model is far smaller than the papers' models.
    """
    pace = {"num_steps": 500, "warmup_steps": 25, "log_every": 10, "evaluate_every": 50}
    tokens = {"batch_tokens": 2_048, "seq_len": 256, "evaluation_tokens": 8_192}
    rates = {"learning_rate": 3e-3, "final_learning_rate": 3e-4}
    model = {"hidden_size": 128, "num_hidden_layers": 4, "num_heads": 8, "head_dim": 16}
    model |= {"tie_word_embeddings": True, "scaled_head_init": False}
    data = DataConfig(source="python", vocab_size=257)
    return softmax_run("laptop", data, model, {**pace, **tokens, **rates})


def study() -> RunPlan:
    """Softmax model of 5.3M parameters with 16 heads (8 DIFF heads) of width 32, 4M tokens per run.

    Command: ``diffattn reproduce text --scale study``. Hardware: 2 CPU cores with instructions for
    bfloat16. Duration: about 30 core-hours: a sweep of learning rates, and whole runs at its two
    best rates. Models that a verdict depends on have five seeds, the others three. Expected: with
    ``TIED_START`` the results in docs/findings/results.md; with an untied head not known.
    """
    pace = {"num_steps": 4_000, "warmup_steps": 200, "log_every": 40, "evaluate_every": 200}
    tokens = {"batch_tokens": 1_024, "seq_len": 256, "evaluation_tokens": 32_768}
    rates = {"learning_rate": 2e-3, "final_learning_rate": 2e-4, "precision": "bfloat16"}
    model = {"hidden_size": 256, "num_hidden_layers": 4, "num_heads": 16, "head_dim": 32}
    data = DataConfig(source="python", vocab_size=2_048)
    return softmax_run("study", data, model, {**pace, **tokens, **rates})


def workstation() -> RunPlan:
    """Softmax model of 0.13B parameters with 16 heads (8 DIFF heads) of width 64, 0.26B tokens.

    Command: ``diffattn reproduce text --scale workstation --set data.source=texts/``. Hardware: one
    GPU with bfloat16. Duration: 2e17 operations per run, 9 minutes at 0.35 PFLOP/s; not run by this
    project. Expected: not known. Name a corpus of at least as many tokens: the default, Python's
    standard library, is about a hundred times smaller.
    """
    pace = {"num_steps": 2_000, "warmup_steps": 100, "log_every": 20, "evaluate_every": 100}
    tokens = {"batch_tokens": 131_072, "seq_len": 1_024, "evaluation_tokens": 524_288}
    tokens |= {"micro_batch_sequences": 16}
    rates = {"learning_rate": 6e-4, "final_learning_rate": 6e-5, "precision": "bfloat16"}
    model = {"hidden_size": 1_024, "num_hidden_layers": 8, "num_heads": 16, "head_dim": 64}
    data = DataConfig(source="python", vocab_size=16_384)
    return softmax_run("workstation", data, model, {**pace, **tokens, **rates})


def lease() -> RunPlan:
    """Softmax model of 29M parameters with 16 heads (8 DIFF heads) of width 32, 70M tokens.

    Command: ``diffattn reproduce lease``. Hardware: one H100, for a quarter of an hour at a time;
    docs/guides/gpu_session.md says how records are copied. Every lease packs the text again, with
    the same installation of Python. Duration: about 2.5 minutes per run, 50 minutes in all.
    Expected: not known; docs/log.md holds the question and the decision rule.

    A model of a quarter of the size would take as long, as launching kernels is the limit.
    """
    pace = {"num_steps": 2_160, "warmup_steps": 100, "log_every": 20, "evaluate_every": 60}
    tokens = {"batch_tokens": 32_768, "seq_len": 1_024, "evaluation_tokens": 131_072}
    rates = {"learning_rate": 1.5e-3, "final_learning_rate": 1.5e-4, "precision": "bfloat16"}
    model = {"hidden_size": 512, "num_hidden_layers": 8, "num_heads": 16, "head_dim": 32}
    data = DataConfig(source="packages", vocab_size=4_096, validation_fraction=0.01)
    return softmax_run("lease", data, model, {**pace, **tokens, **rates})


COMPARISON: dict[str, Callable[[], RunPlan]] = {
    make.__name__: make for make in (smoke, laptop, study, workstation, lease)
}
