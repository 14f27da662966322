"""The loss over tokens of the DIFF Transformer paper's main pair."""

from dataclasses import replace
from functools import partial

from diffattn.lab.catalog.recipes.diff_transformer_3b import main_run
from diffattn.lab.catalog.recipes.plan import RunPlan


def token_scaling(attention_type: str) -> RunPlan:
    """The curve of Figure 3b: the main 3B run to 90,000 steps, evaluated every 10,000.

    Command: ``diffattn train token-scaling-diff --out FOLDER --set data.source=... --set
    data.tokenizer=... --set engine.save_every=1000``, and the same of ``token-scaling-softmax``.
    Hardware: many GPU nodes; not run by this project. Duration: weeks. Tokens: 377B (the paper
    counts 4M a step, 360B). Expected: DIFF at 160B tokens with the loss of the Transformer at 251B
    (Figure 3b, 63.7 %).

    Source: arXiv:2410.05258v2, section 3.2.

    Args:
        attention_type: ``"diff"`` or ``"softmax"``.
    """
    run = main_run("3b", f"token-scaling-{attention_type}", attention_type)
    return replace(run, train=replace(run.train, num_steps=90_000, evaluate_every=10_000))


TOKEN_SCALING = {
    f"token-scaling-{kind}": partial(token_scaling, kind) for kind in ("diff", "softmax")
}
