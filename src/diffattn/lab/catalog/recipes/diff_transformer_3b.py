"""The main language models of the DIFF Transformer paper, and their loss over tokens."""

from dataclasses import replace
from functools import partial

from diffattn.lab.catalog.recipes.plan import RunPlan
from diffattn.lab.training.config import DataConfig, TrainConfig
from diffattn.models.presets import preset_settings


def main_run(size: str, name: str, attention_type: str = "diff") -> RunPlan:
    """The paper's main 3B training, applied to a preset of any size.

    Source: arXiv:2410.05258v2, section 3.1 and Appendix D.

    Args:
        size: Name of a preset.
        attention_type: ``"diff"``, or the type of a twin with equally many parameters."""
    model = preset_settings(size, attention_type)
    model.max_position_embeddings = _TRAIN.seq_len
    return RunPlan(
        name=name, model=model, train=_TRAIN, data=DataConfig(vocab_size=model.vocab_size)
    )


_TRAIN = TrainConfig(
    num_steps=83_447,
    batch_tokens=4_194_304,
    seq_len=4_096,
    micro_batch_sequences=4,
    learning_rate=3.2e-4,
    final_learning_rate=1.28e-5,
    warmup_steps=1_000,
    beta_2=0.95,
    weight_decay=0.1,
    precision="bfloat16",
    log_every=50,
    evaluate_every=1_000,
    evaluation_tokens=4_194_304,
)


def diff_transformer_3b() -> RunPlan:
    """DIFF 3B: 4M tokens per step at length 4,096, 350B tokens.

    Command: ``diffattn train diff-transformer-3b --out FOLDER --set data.source=... --set
    data.tokenizer=...``. Hardware: GPU nodes; not run by this project. Duration: 5,610 hours
    of an H100 by ``diffattn plan``, at the measured 40 % of its peak.
    Expected: the losses of Table 8. The paper's Table 1 trains on 1T tokens:
    ``train.num_steps=238419``. The paper's corpus is not public: name your own.

    Source: arXiv:2410.05258v2, section 3.1 and Appendix D (recipe of StableLM-3B-4E1T).
    """
    return main_run("3b", "diff-transformer-3b")


def transformer_3b() -> RunPlan:
    """The matched Transformer of DIFF 3B: 24 softmax heads, otherwise the same run.

    Command: ``diffattn train transformer-3b --out FOLDER --set data.source=... --set
    data.tokenizer=...``. Hardware: GPU nodes; not run by this project. Duration: 4,640 hours
    of an H100 by ``diffattn plan``, at the measured 49 % of its peak.
    Tokens: 350B. Expected: Table 8. The corpus is not public: name your own.

    Source: arXiv:2410.05258v2, section 3.1 and Appendix D.
    """
    return main_run("3b", "transformer-3b", "softmax")


def token_scaling(attention_type: str) -> RunPlan:
    """The curve of Figure 3b: the main 3B run to 90,000 steps, evaluated every 10,000.

    Command: ``diffattn train token-scaling-diff --out FOLDER --set data.source=... --set
    data.tokenizer=... --set engine.save_every=1000``, and the same of ``token-scaling-softmax``.
    Hardware: many GPU nodes; not run by this project. Duration: weeks. Tokens: 377B (the paper
    counts 4M a step, 360B). Expected: DIFF at 160B tokens with the loss of the Transformer at 251B
    (Figure 3b, 63.7 %).

    Source: arXiv:2410.05258v2, section 3.2.
    """
    run = main_run("3b", f"token-scaling-{attention_type}", attention_type)
    return replace(run, train=replace(run.train, num_steps=90_000, evaluate_every=10_000))


TOKEN_SCALING = {
    f"token-scaling-{kind}": partial(token_scaling, kind) for kind in ("diff", "softmax")
}
