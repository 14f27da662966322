"""The ablations of the DIFF Transformer paper's Table 6, and those of the V2 note."""

from dataclasses import replace
from functools import partial
from typing import Any

from diffattn.lab.catalog.recipes.diff_transformer_scaling import scaling
from diffattn.lab.catalog.recipes.plan import RunPlan
from diffattn.models.config.settings import ModelSettings
from diffattn.models.twins import twin

_SOFTMAX_8 = {"attention_type": "softmax", "num_heads": 8, "head_dim": 256}
_ROWS: dict[str, dict[str, Any]] = {
    "softmax": {"attention_type": "softmax", "num_heads": 16, "head_dim": 128},
    "softmax-8": _SOFTMAX_8,
    "softmax-8-norm": _SOFTMAX_8 | {"head_norm": True},
    "diff": {},
    "diff-no-norm": {"head_norm": False},
    "diff-lambda-0.8": {"lambda_init": 0.8},
    "diff-lambda-0.5": {"lambda_init": 0.5},
}
"""Row -> changed settings of the 1.4B model."""
_OF_V2_NOTE = {
    "diff-v2": ("diff_v2", 16),
    "diff-v2-no-lambda": ("diff_v2_no_lambda", 16),
    "diff-v2-raw-lambda": ("diff_v2_raw_lambda", 16),
    "diff-v2-across": ("diff_v2_across", 16),
    "softmax-24": ("softmax", 24),
}
"""Row of the V2 note -> attention type and number of heads. The note prints no losses. The rows of
V2 are: V2; without λ; without λ's sigmoid; pairs of heads that share neither keys nor values.
``softmax-24`` has 1.5 times the heads, also of keys and values, so its FFN is narrower than V2's.
"""


def ablation(name: str) -> RunPlan:
    """One row of Table 6 or of the V2 note's ablations: a 1.4B model at 10B tokens.

    Command: ``diffattn train ablation-diff-no-norm --out FOLDER --set data.source=... --set
    data.tokenizer=...``. Hardware: a GPU node; not run by this project. Duration: days. Tokens:
    10B. Expected: the losses of Table 6 (:func:`diffattn.lab.report.paper.table_6`), on the paper's
    corpus, which is not public. ``diffattn reproduce ablations`` trains small models of the same
    kinds. Rows of Table 6 keep the FFN's width. Rows of the note change it so that all have the
    parameters of ``softmax``, up to a multiple of 8 channels.

    Source: arXiv:2410.05258v2, Table 6; DIFF V2 note (January 2026) for its rows.
    """
    run = scaling("1.4b")
    if name in _OF_V2_NOTE:
        kind, heads = _OF_V2_NOTE[name]
        softmax = ablation("softmax").model
        model = twin(softmax, kind, num_heads=heads, num_kv_heads=heads).config
    else:
        kept = run.model.settings() | {"num_kv_heads": None, "shared_rank": None}
        model = ModelSettings(**kept | _ROWS[name])
    return replace(run, name=f"ablation-{name}", model=model)


ABLATIONS = {f"ablation-{name}": partial(ablation, name) for name in (*_ROWS, *_OF_V2_NOTE)}
