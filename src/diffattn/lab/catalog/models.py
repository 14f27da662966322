"""Every model that studies compare, one row each. Loads without torch and transformers.

A new control needs a row here, a layer in :mod:`diffattn.layers` and a test of that layer.
"""

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any

from diffattn.errors import ConfigError

if TYPE_CHECKING:
    from diffattn.models.configuration_diff_transformer import DiffTransformerConfig
    from diffattn.models.twins import Twin


@dataclass(frozen=True, slots=True)
class Variant:
    """One model of a comparison, made from the softmax base."""

    role: str
    """``"baseline"``, ``"type"``, ``"control"``, ``"ablation"``, ``"match"`` or ``"rank"``."""
    name: str
    title: str
    summary: str
    """The model in words, or the effect that it separates."""
    compared_with: str = "softmax"
    """Name of its baseline. It uses the baseline's learning rate unless its own rate is swept."""
    also: tuple[str, ...] = ()
    """Names of further baselines, used if they take part in the study."""
    color: str = "#999999"
    side_effect_of: tuple[str, ...] = ()
    """Types whose side effect this control has without their learned second map."""
    layer: str = ""
    """Attention type of its layers. Default: the name."""
    match: str | None = None
    """Budget that it shares with the softmax model. Default: the comparison's budget."""
    heads: float = 1.0
    """Number of heads divided by the softmax model's, like the width of a head."""
    width: int = 1
    changes: Mapping[str, Any] = field(default_factory=dict)
    """Field of the model's configuration -> changed value."""

    @property
    def attention_type(self) -> str:
        """Attention type of its layers."""
        return self.layer or self.name

    def twin(self, base: "DiffTransformerConfig", match: str) -> "Twin[DiffTransformerConfig]":
        """The model of this variant. ``base``: the softmax model; ``match``: the budget."""
        changes = dict(self.changes)
        if (self.heads, self.width) != (1, 1):
            for name in ("num_heads", "num_kv_heads"):
                count = getattr(base, name) * self.heads
                if not count.is_integer():
                    raise ConfigError(f"{self.name}: {name} must be whole, got {count:g}.")
                changes[name] = int(count)
            changes["head_dim"] = base.head_dim * self.width
        return base.twin(self.attention_type, self.match or match, **changes)


BASELINE = "softmax"
FLOOR, WIDER_FLOOR = "none", "none_ffn"
"""Controls without attention. A study says nothing unless softmax attention beats both."""
WIDE, WIDE_NORM, MORE_HEADS = "softmax_wide", "softmax_wide_norm", "softmax_more_heads"
UNIFORM_SECOND = "softmax_minus_mean"
WITHOUT_NORM, ADDED, UNIFORM = "diff_no_norm", "diff_added", "diff_uniform"
V2_WITH_NORM = "diff_v2_norm"
RANK = "shared_diff_r8"
"""The rank of the comparison on text at study scale; other ranks are compared with it."""
RANK_WITHOUT_NORM = f"{RANK}_no_norm"

_V1, _V2, _SHARED = "diff", "diff_v2", "shared_diff"
_type, _control, _ablation = (partial(Variant, role) for role in ("type", "control", "ablation"))
_of_v1, _of_v2 = (partial(_ablation, compared_with=name) for name in (_V1, _V2))
# With a side effect of V2, or of all DIFF types.
_like_v2 = partial(_of_v2, side_effect_of=(_V2,))
_like_all = partial(_control, side_effect_of=(_V1, _V2, _SHARED))
_rank = partial(Variant, "rank", layer=_SHARED)
_halved = partial(Variant, "ablation", layer=BASELINE, heads=0.5, width=2)
GATE, ELEMENT_GATE, GROUPED, DEX = "diff_v2_gate", "gated_element", "grouped_diff", "dex"
FEW = (BASELINE, _V2, GATE)
"""Models of the laptop comparison: the Transformer, the best type and its nearest control."""
_NORM = {"head_norm": True}
_LAMBDA_INITS = {"_lambda_08": 0.8, "_lambda_05": 0.5}


def _match(budget: str, kind: str, title: str, summary: str) -> Variant:
    name = f"{kind}_{budget}"
    return Variant("match", name, title, summary, kind, (BASELINE,), layer=kind, match=budget)


# Colours are Okabe and Ito's: distinct under common colour-vision deficiencies and in grey.
_TYPES = (
    Variant("baseline", BASELINE, "Transformer (softmax)", "the baseline", color="#4d4d4d"),
    _type(_V1, "DIFF V1", "DIFF Transformer", also=(WIDE_NORM,), color="#0072b2"),
    _type(_V2, "DIFF V2", "DIFF V2", also=(MORE_HEADS,), color="#d55e00"),
    _type(_SHARED, "Shared DIFF", "Shared DIFF", also=(WIDE_NORM,), color="#009e73"),
)
TYPES = tuple(row.name for row in _TYPES)
"""Softmax and the attention types of the papers."""
_TEXT = (
    *_TYPES,
    _control(
        FLOOR, "No attention", "no attention: its output is zero", color="#cc79a7", match="heads"
    ),
    _control(
        WIDER_FLOOR,
        "No attention, wider FFN",
        "no attention, its parameters given to the feed-forward layers",
        compared_with=FLOOR,
        also=(BASELINE,),
        color="#e69f00",
        layer=FLOOR,
        match="params",
    ),
    _like_all("softmax_half", "Softmax × ½", "softmax times ½: V2's scale at the start"),
    _like_all(
        UNIFORM_SECOND,
        "Softmax − 0.7 mean value",
        "softmax minus 0.7 times the mean value: a second map that sees nothing",
    ),
    _control(
        WITHOUT_NORM,
        "DIFF V1 without head norm",
        "V1 without head norm",
        compared_with=_V1,
        also=(BASELINE,),
        color="#56b4e9",
        layer=_V1,
        changes={"head_norm": False},
    ),
    _like_v2(
        GATE,
        "DIFF V2, gate only",
        "V2 without its second map: softmax times 1 − λ",
        also=(BASELINE,),
        layer="gated_head",
    ),
    _of_v2("diff_v2_constant", "DIFF V2, λ = ½", "V2 with λ = ½"),
    _of_v2(
        V2_WITH_NORM,
        "DIFF V2 with head norm",
        "V2 with head norm",
        color="#8c6d00",
        layer=_V2,
        changes=_NORM,
    ),
    _like_v2(
        "diff_v2_added",
        "DIFF V2, maps added",
        "V2 whose second map is added: nothing is subtracted",
    ),
    _like_v2(
        "diff_v2_added_matched",
        "DIFF V2, maps added, V2's size",
        "V2 whose second map is added, its output as large as V2's: only the sign differs",
    ),
    _of_v1("diff_token_lambda", "DIFF V1, λ per token", "V1 with V2's λ per token and head"),
    _match("heads", _V2, "DIFF V2, equal heads", "V2 at equal heads: more parameters"),
    _match("flops", _V2, "DIFF V2, equal FLOPs", "V2 at equal training FLOPs"),
    _match(
        "heads", _SHARED, "Shared DIFF, equal heads", "Shared DIFF at equal heads: fewer parameters"
    ),
)
_RECALL = (
    _control(
        "softmax_norm",
        "Softmax with head norm",
        "softmax with head norm, its heads half as wide as V1's",
        compared_with=_V1,
        layer=BASELINE,
        changes=_NORM,
    ),
    _control(
        UNIFORM,
        "DIFF V1, uniform second map",
        "V1 whose second map is uniform: it sees nothing",
        compared_with=_V1,
    ),
)
_ABLATIONS = (
    _ablation(
        ELEMENT_GATE,
        "Gated softmax, per channel",
        "softmax times a gate per channel of its output",
        also=(GATE,),
    ),
    _of_v1(GROUPED, "Grouped DIFF", "V1, one subtracted map per group of heads", also=(BASELINE,)),
    _ablation(DEX, "DEX", "softmax minus λ times a learned map of its output", also=(_V1,)),
    _halved(WIDE, "Softmax, half the heads", "softmax with half the heads, twice as wide"),
    _halved(
        WIDE_NORM,
        "Softmax, half the heads, head norm",
        "the same with head norm",
        compared_with=WIDE,
        changes=_NORM,
    ),
    _ablation(
        MORE_HEADS,
        "Softmax, 1.5 times the heads",
        "softmax with 1.5 times the heads, of keys and values too, and an FFN that "
        "pays for them: more goes to attention than in V2",
        layer=BASELINE,
        heads=1.5,
    ),
    _of_v1(ADDED, "DIFF V1, maps added", "V1 whose second map is added: nothing is subtracted"),
    *(
        _of_v1(
            f"{_V1}{ending}",
            f"DIFF V1, λ_init {value}",
            f"V1 with λ_init = {value} in every layer",
            layer=_V1,
            changes={"lambda_init": value},
        )
        for ending, value in _LAMBDA_INITS.items()
    ),
    _of_v2("diff_v2_no_lambda", "DIFF V2 without λ", "V2 without λ: A1 − A2"),
    _of_v2("diff_v2_raw_lambda", "DIFF V2, λ without sigmoid", "V2 with λ not through a sigmoid"),
    _of_v2(
        "diff_v2_across",
        "DIFF V2, pairs across groups",
        "V2 with pairs i and i + h: other keys and values",
    ),
    _of_v2(
        "diff_v2_shuffled",
        "DIFF V2, second map shuffled",
        "V2 whose second map has its weights at shuffled keys: it cannot know where noise lies",
    ),
    _ablation(
        "shared_diff_map_norm",
        "Shared DIFF, norm on the map",
        "Shared DIFF with its norm on the map, not on the head's output",
        compared_with=_SHARED,
    ),
)
_RANKS = (2, 4, 8, 16)


def _rows_of_rank(rank: int) -> tuple[Variant, ...]:
    name, title = f"shared_diff_r{rank}", f"Shared DIFF, r = {rank}"
    return (
        _rank(
            name,
            title,
            f"Shared DIFF with updates of rank {rank}",
            compared_with=_V1 if name == RANK else RANK,
            also=(BASELINE,) if name == RANK else (_V1, BASELINE),
            changes={"shared_rank": rank},
        ),
        *(
            _rank(
                f"{name}{ending}",
                f"{title}, λ_init {value}",
                f"the same with λ_init = {value} in every layer",
                compared_with=name,
                also=(_V1, BASELINE),
                changes={"shared_rank": rank, "lambda_init": value},
            )
            for ending, value in _LAMBDA_INITS.items()
        ),
    )


_RANKED = (
    *(row for rank in _RANKS for row in _rows_of_rank(rank)),
    _rank(
        RANK_WITHOUT_NORM,
        "Shared DIFF, r = 8, without head norm",
        "the same without head norm",
        compared_with=RANK,
        also=(WITHOUT_NORM,),
        changes={"shared_rank": 8, "head_norm": False},
    ),
)
VARIANTS = {row.name: row for row in (*_TEXT, *_RECALL, *_ABLATIONS, *_RANKED)}
"""Name -> variant."""
NEVER_ATTEND = (FLOOR, WIDER_FLOOR)
SIDE_EFFECTS = tuple(name for name, row in VARIANTS.items() if row.side_effect_of == TYPES[1:])
"""Controls that have a side effect of all DIFF types, without their second map."""
CONTROLS = tuple(row.name for row in _TEXT if row.role == "control")
"""Controls on text."""
RECALL_CONTROLS = (*CONTROLS, "softmax_norm", WIDE, WIDE_NORM, ADDED, UNIFORM)
SWEPT = (*TYPES, FLOOR)
"""Variants whose learning rate is swept. Others use that of their baseline."""
SWEPT_ALONE = (ELEMENT_GATE, GROUPED, DEX)
"""Variants that are swept too where they take part. They do not run at the common rate."""
STUDY_MODELS: dict[str, tuple[str, ...]] = {
    "text": tuple(row.name for row in _TEXT),
    "ablations": (
        *(BASELINE, WIDE, WIDE_NORM, MORE_HEADS),
        *(_V1, WITHOUT_NORM, ADDED, "diff_lambda_08", "diff_lambda_05"),
        *(_V2, "diff_v2_no_lambda", "diff_v2_raw_lambda", "diff_v2_across"),
        *(_SHARED, "shared_diff_map_norm", FLOOR),
    ),
    "rank": (BASELINE, _V1, WITHOUT_NORM, *(row.name for row in _RANKED), FLOOR),
}
"""Kind of study -> names of its variants, in the order of its tables."""
RANKS_ALONE = (
    *(BASELINE, _V1),
    *(f"shared_diff_r{rank}" for rank in _RANKS),
    *(f"{RANK}{ending}" for ending in _LAMBDA_INITS),
    FLOOR,
)
"""Variants of long rank studies. Fewer of them leave time for more seeds."""


def rate_owner(name: str, swept: Collection[str] = SWEPT) -> str:
    """Name of the variant whose sweep sets the learning rate of ``name``."""
    while name not in swept:
        name = VARIANTS[name].compared_with
    return name


def own_side_effects(name: str) -> tuple[str, ...]:
    """Names of the variants that have a side effect of the type ``name`` and of no other type."""
    return tuple(row.name for row in VARIANTS.values() if row.side_effect_of == (name,))


def gets_every_seed(name: str) -> bool:
    """Whether a verdict about a type depends on this variant. Others may have fewer seeds."""
    row = VARIANTS.get(name)
    return row is not None and (
        row.role in ("baseline", "type", "control") or bool(row.side_effect_of)
    )


def type_name(name: str) -> str:
    """Title of a variant; an unknown name is returned as it is."""
    return VARIANTS[name].title if name in VARIANTS else name


def type_color(name: str) -> str:
    """Hex colour of a variant."""
    return VARIANTS[name].color if name in VARIANTS else "#999999"
