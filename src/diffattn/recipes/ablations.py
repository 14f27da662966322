"""The ablations of the DIFF Transformer paper's Table 6, and a baseline of the V2 note."""

from dataclasses import replace
from functools import partial
from types import MappingProxyType
from typing import Any

from diffattn.models.settings import ModelSettings
from diffattn.recipes.diff_transformer_scaling import scaling
from diffattn.recipes.plan import RunPlan

# Of the 1.4B model, and the validation loss in Table 6.
_ROWS: MappingProxyType[str, tuple[dict[str, Any], float | None]] = MappingProxyType(
    {
        "softmax": ({"attention_type": "softmax", "num_heads": 16, "head_dim": 128}, 3.087),
        "softmax-8": ({"attention_type": "softmax", "num_heads": 8, "head_dim": 256}, 3.088),
        "softmax-8-norm": (
            {"attention_type": "softmax", "num_heads": 8, "head_dim": 256, "head_norm": True},
            3.086,
        ),
        "diff": ({}, 3.062),
        "diff-no-norm": ({"head_norm": False}, 3.122),
        "diff-lambda-0.8": ({"lambda_init": 0.8}, 3.065),
        "diff-lambda-0.5": ({"lambda_init": 0.5}, 3.066),
        # Of the V2 note, which prints no losses.
        "diff-v2": ({"attention_type": "diff_v2", "num_heads": 16}, None),
        "softmax-24": ({"attention_type": "softmax", "num_heads": 24, "head_dim": 128}, None),
    }
)
LOSSES = {f"ablation-{name}": loss for name, (_, loss) in _ROWS.items() if loss is not None}
"""Validation losses of Table 6."""


def ablation(name: str) -> RunPlan:
    """One row of Table 6: a 1.4B model at 10B tokens; or V2 and softmax with 1.5 times the heads.

    Command: ``diffattn train ablation-diff-no-norm --out FOLDER --set data.source=... --set
    data.tokenizer=...``. Hardware: a GPU node; not run by this project. Duration: days. Tokens:
    10B. Expected: the losses of Table 6 (:data:`LOSSES`), on the paper's corpus, which is not
    public. The FFN keeps its width.

    Source: arXiv:2410.05258v2, Table 6; DIFF V2 note (January 2026) for the last two.

    Args:
        name: Row of the table above.
    """
    run = scaling("1.4b")
    changes, _ = _ROWS[name]
    kept = run.model.settings() | {"num_kv_heads": None, "shared_rank": None}
    return replace(run, name=f"ablation-{name}", model=ModelSettings(**kept | changes))


ABLATIONS = {f"ablation-{name}": partial(ablation, name) for name in _ROWS}
