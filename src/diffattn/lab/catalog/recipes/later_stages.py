"""Later stages of the DIFF Transformer paper's main runs: 64K context, then mathematics."""

from dataclasses import replace
from functools import partial

from diffattn.lab.catalog.recipes.diff_transformer_3b import main_run
from diffattn.lab.catalog.recipes.plan import RunPlan
from diffattn.lab.training.config import WindowConfig

ROPE_THETA = 640_000.0
LENGTH = 65_536
"""Longest context of the model after the stage, and length of its training windows, in tokens."""


def long_context(attention_type: str) -> RunPlan:
    """1.5B more tokens at length 65,536 with RoPE θ 640,000 and learning rate 8e-5.

    Command: ``diffattn train long-context-diff --init-from MAIN --out FOLDER --set data.source=...
    --set data.tokenizer=MAIN/model``. MAIN is the finished run of ``diff-transformer-3b``, or of
    ``transformer-3b`` for the softmax twin. Without ``--init-from`` it starts from fresh weights.
    Hardware: GPU nodes; not run by this project. Duration: a day or less. Tokens: 1.5B. Expected:
    Figures 4 and 5 of the paper, whose models continue the pair of 350B tokens. The paper prints
    neither warm-up nor last rate: here a tenth of the steps, and 4 % of the peak as in the main
    run. It up-samples long documents as Fu et al. do. The numbers are our choice, from an
    example in Fu et al.'s code that drops nine of ten documents below 4,096 tokens.

    Source: arXiv:2410.05258v2, section 3.3 and Appendix D; arXiv:2402.10171 (up-sampling).
    """
    run = main_run("3b", f"long-context-{attention_type}", attention_type)
    main_tokens = run.train.seq_len
    run.model.rope_parameters = {"rope_type": "default", "rope_theta": ROPE_THETA}
    run.model.max_position_embeddings = LENGTH
    train = replace(
        run.train,
        num_steps=358,
        seq_len=LENGTH,
        micro_batch_sequences=1,
        learning_rate=8e-5,
        final_learning_rate=8e-5 * run.train.final_learning_rate / run.train.learning_rate,
        warmup_steps=36,
        evaluate_every=50,
    )
    windows = WindowConfig(upsample_longer_than=main_tokens, upsample_factor=10.0)
    return replace(run, train=train, windows=windows)


LONG_CONTEXT = {f"long-context-{kind}": partial(long_context, kind) for kind in ("diff", "softmax")}
_STAGES = {  # stage -> learning rate, tokens per step, steps
    1: (8e-5, 4_194_304, 4_768),
    2: (1e-5, 1_048_576, 1_907),
}


def math_stage(stage: int, attention_type: str) -> RunPlan:
    """20B tokens of synthetic mathematics (stage 1), or 2B tokens of fine-tuning (stage 2).

    Command: ``diffattn train math-1-diff --init-from LONG --out STAGE1 --set data.source=... --set
    data.tokenizer=LONG/model``, where LONG is the finished run of ``long-context-diff``. Then
    ``math-2-diff --init-from STAGE1``. Both stages keep LONG's RoPE θ and longest context. Without
    ``--init-from`` they start from fresh weights. Hardware: GPU nodes; not run by this project.
    Duration: days. Tokens: 20B at learning rate 8e-5, then 2B at 1e-5 with 1M a step. Expected:
    Figure 9 of the paper, which starts from its 64K models. The paper prints no schedule or window
    length: here they are the main run's, with a warm-up of a tenth of the steps.

    Source: arXiv:2410.05258v2, mathematical reasoning (two-stage training).
    """
    rate, batch_tokens, num_steps = _STAGES[stage]
    run = main_run("3b", f"math-{stage}-{attention_type}", attention_type)
    run.model.rope_parameters = {"rope_type": "default", "rope_theta": ROPE_THETA}
    run.model.max_position_embeddings = LENGTH  # as in the initial weights; windows are shorter
    train = replace(
        run.train,
        num_steps=num_steps,
        batch_tokens=batch_tokens,
        learning_rate=rate,
        final_learning_rate=rate * run.train.final_learning_rate / run.train.learning_rate,
        warmup_steps=num_steps // 10,
    )
    return replace(run, train=train)


MATH = {
    f"math-{stage}-{kind}": partial(math_stage, stage, kind)
    for stage in _STAGES
    for kind in ("diff", "softmax")
}
