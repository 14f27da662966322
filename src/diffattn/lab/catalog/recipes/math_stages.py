"""The two stages of the DIFF Transformer paper's mathematical reasoning."""

from dataclasses import replace
from functools import partial

from diffattn.lab.catalog.recipes.diff_transformer_3b import main_run
from diffattn.lab.catalog.recipes.long_context import LENGTH, ROPE_THETA
from diffattn.lab.catalog.recipes.plan import RunPlan

_STAGES = {  # learning rate, tokens of a step, steps
    1: (8e-5, 4_194_304, 4_768),
    2: (1e-5, 1_048_576, 1_907),
}


def math_stage(stage: int, attention_type: str) -> RunPlan:
    """20B tokens of synthetic mathematics (stage 1), or 2B tokens of fine-tuning (stage 2).

    Command: ``diffattn train math-1-diff --init-from LONG --out STAGE1 --set data.source=... --set
    data.tokenizer=LONG/model``, where LONG is the finished run of ``long-context-diff``, whose θ is
    kept, as is its longest context of 65,536; then ``math-2-diff --init-from STAGE1``. Without
    ``--init-from`` they start from fresh weights. Hardware: GPU nodes; not run by this project.
    Duration: days. Tokens: 20B at learning rate 8e-5, then 2B at 1e-5 with 1M a step. Expected:
    Figure 9 of the paper, which starts from its 64K models. Schedule, warm-up and length are not
    printed: the main run's decay and length, a tenth of the steps.

    Source: arXiv:2410.05258v2, mathematical reasoning (two-stage training).

    Args:
        stage: 1 or 2.
        attention_type: ``"diff"`` or ``"softmax"``.
    """
    rate, batch_tokens, num_steps = _STAGES[stage]
    run = main_run("3b", f"math-{stage}-{attention_type}", attention_type)
    run.model.rope_parameters = {"rope_type": "default", "rope_theta": ROPE_THETA}
    run.model.max_position_embeddings = LENGTH  # of the model it starts from, beyond its windows
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
