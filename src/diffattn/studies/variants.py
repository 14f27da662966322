"""The models that studies compare: softmax, the papers' types, and what would explain a lead."""

from collections.abc import Collection
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

from diffattn.models.attention_types import ATTENTION_TYPES
from diffattn.models.configuration_diff_transformer import DiffTransformerConfig
from diffattn.models.twins import Twin

BASELINE = "softmax"
FLOOR = "none"
"""The control without attention: what a model has to beat before anything is said of attention."""
BLIND = (FLOOR, "none_ffn")
"""They never see another token: above a guess they show that a recall task leaks its answers."""
IMITATIONS = ("softmax_half", "softmax_minus_mean")
"""Softmax attention with a side effect of the difference, and without a second map that learns: a
lead over softmax that one of them has too is no effect of that map."""
WITHOUT_NORM = "diff_no_norm"
"""V1 without what its authors added beside the difference."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Variant:
    """One model of a comparison, made from the softmax base."""

    name: str
    role: str
    """``"baseline"``, ``"type"``, ``"control"``, ``"ablation"`` or ``"match"``."""
    what: str
    """In words: what it is, or what it separates."""
    attention_type: str
    compared_with: str
    """The variant whose learning rate it uses and that it is compared with."""
    match: str | None = None
    """What it keeps equal; ``None``: what the comparison keeps equal."""
    changes: MappingProxyType[str, Any] = field(default_factory=lambda: MappingProxyType({}))

    def twin(self, base: DiffTransformerConfig, match: str) -> Twin[DiffTransformerConfig]:
        """Its model.

        Args:
            base: The softmax model.
            match: What the comparison keeps equal.
        """
        return base.twin(self.attention_type, self.match or match, **self.changes)


def _control(name: str, compared_with: str, what: str, **options: Any) -> Variant:
    options = {"attention_type": name, "role": "control"} | options
    return Variant(name=name, compared_with=compared_with, what=what, **options)


_NO_HEAD_NORM = MappingProxyType({"head_norm": False})
_HEAD_NORM = MappingProxyType({"head_norm": True})
_ROWS = (
    Variant(name=BASELINE, role="baseline", what="the baseline", attention_type="softmax",
            compared_with=BASELINE),
    Variant(name="diff", role="type", what="DIFF Transformer", attention_type="diff",
            compared_with=BASELINE),
    Variant(name="diff_v2", role="type", what="DIFF V2", attention_type="diff_v2",
            compared_with=BASELINE),
    Variant(name="shared_diff", role="type", what="Shared DIFF", attention_type="shared_diff",
            compared_with=BASELINE),
    _control(FLOOR, BASELINE, "no attention: its output is zero", match="heads"),
    _control("none_ffn", FLOOR, "no attention, its parameters given to the feed-forward layers",
             attention_type="none", match="params"),
    _control("softmax_half", BASELINE, "softmax times ½: V2's scale at the start"),
    _control("softmax_minus_mean", BASELINE,
             "softmax minus 0.7 times the mean value: a second map that sees nothing"),
    _control(WITHOUT_NORM, "diff", "V1 without head norm", attention_type="diff",
             changes=_NO_HEAD_NORM),
    _control("diff_v2_gate", "diff_v2", "V2 without its second map: softmax times 1 − λ",
             role="ablation"),
    _control("diff_v2_constant", "diff_v2", "V2 with λ = ½", role="ablation"),
    _control("diff_v2_norm", "diff_v2", "V2 with head norm", role="ablation",
             attention_type="diff_v2", changes=_HEAD_NORM),
    _control("diff_v2_added", "diff_v2", "V2 whose second map is added: nothing is subtracted",
             role="ablation"),
    _control("diff_token_lambda", "diff", "V1 with V2's λ per token and head", role="ablation"),
    _control("diff_v2_heads", "diff_v2", "V2 at equal heads: more parameters", role="match",
             attention_type="diff_v2", match="heads"),
    _control("diff_v2_flops", "diff_v2", "V2 at equal training FLOPs", role="match",
             attention_type="diff_v2", match="flops"),
    _control("shared_diff_heads", "shared_diff", "Shared DIFF at equal heads: fewer parameters",
             role="match", attention_type="shared_diff", match="heads"),
    _control("shared_diff_flops", "shared_diff", "Shared DIFF at equal training FLOPs",
             role="match", attention_type="shared_diff", match="flops"),
)  # fmt: skip
VARIANTS = {row.name: row for row in _ROWS}
"""Name to variant, in the order of tables."""
SWEPT = (*ATTENTION_TYPES, FLOOR)
"""Variants with a rate of their own; the others use that of what they are compared with."""

CONTROLS = tuple(row.name for row in _ROWS if row.role == "control")
"""What has to be compared for a lead to be read as one of the second map."""


def rate_owner(name: str, swept: Collection[str] = SWEPT) -> str:
    """The variant whose sweep decides the learning rate of ``name``."""
    while name not in swept:
        name = VARIANTS[name].compared_with
    return name
