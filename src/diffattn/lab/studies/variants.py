"""The models that studies compare: softmax, the papers' types, what would explain a lead, rows of
the papers' ablations and ranks of Shared DIFF."""

from collections.abc import Collection
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

from diffattn.errors import ConfigError
from diffattn.models.config.attention_types import ATTENTION_TYPES
from diffattn.models.config.configuration_diff_transformer import DiffTransformerConfig
from diffattn.models.twins import Twin

BASELINE = "softmax"
FLOOR = "none"
"""The control without attention: what a model has to beat before anything is said of attention."""
WIDER_FLOOR = "none_ffn"
"""The same with as many parameters as the others."""
WIDE, WIDE_NORM, MORE_HEADS = "softmax_wide", "softmax_wide_norm", "softmax_more_heads"
NORMS_ALONE = ("softmax_norm", WIDE_NORM)
"""Softmax attention with V1's head norm and without its factor 1 − λ_init: over its own heads, and
over half as many whose values are as wide as V1's: one map with its norm; at softmax's rate, or in
recall at a rate of its own."""
WITHOUT_NORM = "diff_no_norm"
"""V1 without what its authors added beside the difference."""
ADDED = "diff_added"
"""V1 without its difference: all that it has, the second map added."""
UNIFORM = "diff_uniform"
"""V1 with a second map that sees nothing."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Variant:
    """One model of a comparison, made from the softmax base."""

    name: str
    role: str
    """``"baseline"``, ``"type"``, ``"control"``, ``"ablation"``, ``"match"`` or ``"rank"``."""
    what: str
    """In words: what it is, or what it separates."""
    attention_type: str
    compared_with: str
    """The variant whose learning rate it uses and that it is compared with."""
    besides: tuple[str, ...] = ()
    """Others that it is compared with, where they take part."""
    match: str | None = None
    """What it keeps equal; ``None``: what the comparison keeps equal."""
    heads: float = 1.0
    """Times as many heads as the softmax model; for variants of its type."""
    width: int = 1
    """Times as wide heads."""
    changes: MappingProxyType[str, Any] = field(default_factory=lambda: MappingProxyType({}))

    def twin(self, base: DiffTransformerConfig, match: str) -> Twin[DiffTransformerConfig]:
        """Its model.

        Args:
            base: The softmax model.
            match: What the comparison keeps equal.

        Raises:
            ConfigError: The model has no such number of heads.
        """
        changes = dict(self.changes)
        if (self.heads, self.width) != (1, 1):
            for name in ("num_heads", "num_kv_heads"):
                wanted = getattr(base, name) * self.heads
                if not wanted.is_integer():
                    raise ConfigError(f"{self.name}: {name} must be whole, got {wanted:g}.")
                changes[name] = int(wanted)
            changes["head_dim"] = base.head_dim * self.width
        return base.twin(self.attention_type, self.match or match, **changes)


def _control(name: str, compared_with: str, what: str, **options: Any) -> Variant:
    options = {"attention_type": name, "role": "control"} | options
    return Variant(name=name, compared_with=compared_with, what=what, **options)


def _of(name: str, role: str, base: str, what: str, kind: str = "", **changes: Any) -> Variant:
    """A row with settings of its own."""
    own = {k: changes.pop(k) for k in ("match", "heads", "width", "besides") if k in changes}
    return Variant(
        name=name, role=role, compared_with=base, what=what, attention_type=kind or base,
        changes=MappingProxyType(changes), **own,
    )  # fmt: skip


_TEXT = (
    Variant(name=BASELINE, role="baseline", what="the baseline", attention_type="softmax",
            compared_with=BASELINE),
    Variant(name="diff", role="type", what="DIFF Transformer", attention_type="diff",
            compared_with=BASELINE, besides=(WIDE_NORM,)),
    Variant(name="diff_v2", role="type", what="DIFF V2", attention_type="diff_v2",
            compared_with=BASELINE, besides=(MORE_HEADS,)),
    Variant(name="shared_diff", role="type", what="Shared DIFF", attention_type="shared_diff",
            compared_with=BASELINE, besides=(WIDE_NORM,)),
    _control(FLOOR, BASELINE, "no attention: its output is zero", match="heads"),
    _control(WIDER_FLOOR, FLOOR, "no attention, its parameters given to the feed-forward layers",
             attention_type="none", match="params", besides=(BASELINE,)),
    _control("softmax_half", BASELINE, "softmax times ½: V2's scale at the start"),
    _control("softmax_minus_mean", BASELINE,
             "softmax minus 0.7 times the mean value: a second map that sees nothing"),
    _of(WITHOUT_NORM, "control", "diff", "V1 without head norm", head_norm=False,
        besides=(BASELINE,)),
    _control("diff_v2_gate", "diff_v2", "V2 without its second map: softmax times 1 − λ",
             role="ablation"),
    _control("diff_v2_constant", "diff_v2", "V2 with λ = ½", role="ablation"),
    _of("diff_v2_norm", "ablation", "diff_v2", "V2 with head norm", head_norm=True),
    _control("diff_v2_added", "diff_v2", "V2 whose second map is added: nothing is subtracted",
             role="ablation"),
    _control("diff_token_lambda", "diff", "V1 with V2's λ per token and head", role="ablation"),
    _of("diff_v2_heads", "match", "diff_v2", "V2 at equal heads: more parameters", match="heads",
        besides=(BASELINE,)),
    _of("diff_v2_flops", "match", "diff_v2", "V2 at equal training FLOPs", match="flops",
        besides=(BASELINE,)),
    _of("shared_diff_heads", "match", "shared_diff", "Shared DIFF at equal heads: fewer parameters",
        match="heads", besides=(BASELINE,)),
)  # fmt: skip
_RECALL = (
    _of("softmax_norm", "control", "diff", "softmax with head norm, its heads half as wide as V1's",
        BASELINE, head_norm=True),
    _control(UNIFORM, "diff", "V1 whose second map is uniform: it sees nothing"),
)  # fmt: skip
_ABLATIONS = (
    _of(WIDE, "ablation", BASELINE, "softmax with half the heads, twice as wide",
        heads=0.5, width=2),
    _of(WIDE_NORM, "ablation", WIDE, "the same with head norm", BASELINE,
        heads=0.5, width=2, head_norm=True),
    _of(MORE_HEADS, "ablation", BASELINE, "softmax with 1.5 times the heads, of keys and values "
        "too, and an FFN that pays for them: more goes to attention than in V2", heads=1.5),
    _control(ADDED, "diff", "V1 whose second map is added: nothing is subtracted",
             role="ablation"),
    _of("diff_lambda_08", "ablation", "diff", "V1 with λ_init = 0.8 in every layer",
        lambda_init=0.8),
    _of("diff_lambda_05", "ablation", "diff", "V1 with λ_init = 0.5 in every layer",
        lambda_init=0.5),
    _control("diff_v2_no_lambda", "diff_v2", "V2 without λ: A1 − A2", role="ablation"),
    _control("diff_v2_raw_lambda", "diff_v2", "V2 with λ not through a sigmoid", role="ablation"),
    _control("diff_v2_across", "diff_v2", "V2 with pairs i and i + h: other keys and values",
             role="ablation"),
    _control("shared_diff_map_norm", "shared_diff",
             "Shared DIFF with its norm on the map, not on the head's output", role="ablation"),
)  # fmt: skip
_RANKS = (2, 4, 8, 16)
RANK = "shared_diff_r8"
"""Of the comparison on text at study scale: other ranks are compared with it."""
_LAMBDA_INITS = {"_lambda_08": 0.8, "_lambda_05": 0.5}


def _of_rank(rank: int) -> tuple[Variant, ...]:
    name, kind = f"shared_diff_r{rank}", "shared_diff"
    what = f"Shared DIFF with updates of rank {rank}"
    return (
        _of(name, "rank", "diff" if name == RANK else RANK, what, kind, shared_rank=rank,
            besides=(BASELINE,) if name == RANK else ("diff", BASELINE)),
        *(
            _of(f"{name}{end}", "rank", name, f"the same with λ_init = {value} in every layer",
                kind, shared_rank=rank, lambda_init=value, besides=("diff", BASELINE))
            for end, value in _LAMBDA_INITS.items()
        ),
    )  # fmt: skip


_RANKED = tuple(variant for rank in _RANKS for variant in _of_rank(rank))
VARIANTS = {row.name: row for row in (*_TEXT, *_RECALL, *_ABLATIONS, *_RANKED)}
"""Name to variant."""
MEMBERS: dict[str, tuple[str, ...]] = {
    "text": tuple(row.name for row in _TEXT),
    "ablations": (
        BASELINE, WIDE, WIDE_NORM, MORE_HEADS,
        "diff", WITHOUT_NORM, ADDED, "diff_lambda_08", "diff_lambda_05",
        "diff_v2", "diff_v2_no_lambda", "diff_v2_raw_lambda", "diff_v2_across",
        "shared_diff", "shared_diff_map_norm", FLOOR,
    ),
    "rank": (BASELINE, "diff", *(row.name for row in _RANKED), FLOOR),
}  # fmt: skip
"""Kind of study to all that it compares, in the order of tables: the matched comparison; Table 6
with V1 whose maps are added, V2's ablations and the other reading of Shared DIFF's norm; Shared
DIFF's rank and λ_init."""
RANKS_ALONE = (
    BASELINE, "diff", *(f"shared_diff_r{rank}" for rank in _RANKS),
    *(f"{RANK}{end}" for end in _LAMBDA_INITS), FLOOR,
)  # fmt: skip
"""Ranks with the schedule of λ_init, and λ_init at one of them: where runs take long, seeds tell
more than every rank with every λ_init."""
SWEPT = (*ATTENTION_TYPES, FLOOR)
"""Variants with a rate of their own; the others use that of what they are compared with."""

CONTROLS = tuple(row.name for row in _TEXT if row.role == "control")
"""What has to be compared for a lead to be read as one of the second map."""
RECALL_CONTROLS = (*CONTROLS, "softmax_norm", WIDE, WIDE_NORM, ADDED, UNIFORM)
"""Where a type with head norm led, the norm alone and the width of its heads count too, and where
V1 did, its maps without their difference, and a difference that sees nothing."""


def rate_owner(name: str, swept: Collection[str] = SWEPT) -> str:
    """The variant whose sweep decides the learning rate of ``name``."""
    while name not in swept:
        name = VARIANTS[name].compared_with
    return name
