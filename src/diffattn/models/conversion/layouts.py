"""Tables of the layouts of weights: names of tensors by role, order of heads and channels.

A role is the purpose of a tensor: in every layout ``q`` is the query projection. In names, ``{}``
stands for the number of the layer. Loads without torch.
"""

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Literal

Pairs = Literal["adjacent", "split"]
"""Blocks of D rows that hold the maps of head i, or halves of its value: 2i and 2i + 1, or i and
i + h."""
Rope = Literal["halves", "interleaved", "none"]
"""Pairs of channels that are rotated together: c and c + D/2, or 2c and 2c + 1."""
STARTS = ("diff_v2", "diff", "shared_diff", "gated_head", "gated_element", "dex")
"""Attention types to which a softmax model can be converted."""
TARGETS = ("diffattn", "diffllama", "original", *STARTS)
"""Targets of a conversion: layouts, and attention types in our layout."""
LAMBDAS = ("lambda_q1", "lambda_k1", "lambda_q2", "lambda_k2")
OUR_ENDINGS = {
    "q": "q_proj.weight", "k": "k_proj.weight", "v": "v_proj.weight", "o": "o_proj.weight",
    "subln": "subln.weight", "lambda_proj": "lambda_proj.weight",
    "lambda_bias": "lambda_proj.bias", "q_down": "q_down_proj.weight",
    "k_down": "k_down_proj.weight", "q_up": "q_up", "k_up": "k_up", "dex": "dex_proj.weight",
    "q_bias": "q_proj.bias", "k_bias": "k_proj.bias", "v_bias": "v_proj.bias",
    "q_norm": "q_norm.weight", "k_norm": "k_norm.weight",
    "gate": "gate_proj.weight", "up": "up_proj.weight", "down": "down_proj.weight",
    "input_norm": "input_layernorm.weight", "post_norm": "post_attention_layernorm.weight",
    "embed": "embed_tokens.weight", "norm": "model.norm.weight", "head": "lm_head.weight",
} | {name: name for name in LAMBDAS}  # fmt: skip
"""Role -> ending of the tensor's name in our files."""

_HUGGING_FACE = {
    "embed": "model.embed_tokens.weight", "norm": "model.norm.weight", "head": "lm_head.weight",
    "input_norm": "model.layers.{}.input_layernorm.weight",
    "post_norm": "model.layers.{}.post_attention_layernorm.weight",
    "gate": "model.layers.{}.mlp.gate_proj.weight", "up": "model.layers.{}.mlp.up_proj.weight",
    "down": "model.layers.{}.mlp.down_proj.weight",
}  # fmt: skip
_UNILM = {  # unilm's decoder-only models; w1 is the gate
    "embed": "tok_embeddings.weight", "norm": "norm.weight", "head": "output.weight",
    "input_norm": "layers.{}.attention_norm.weight", "post_norm": "layers.{}.ffn_norm.weight",
    "gate": "layers.{}.feed_forward.w1.weight", "up": "layers.{}.feed_forward.w3.weight",
    "down": "layers.{}.feed_forward.w2.weight",
}  # fmt: skip
_V1 = ("q", "k", "v", "o", *LAMBDAS, "subln")
_V2 = ("q", "k", "v", "o", "lambda_proj")
_SOFTMAX = ("q", "k", "v", "o")
_QWEN = ("q_bias", "k_bias", "v_bias", "q_norm", "k_norm")
"""Roles of the biases in Qwen2 and of the query and key norms in Qwen3."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Layout:
    """One published layout of weights."""

    name: str
    title: str
    attention_type: str
    """The attention type of this package with the same function."""
    names: tuple[Mapping[str, str], ...]
    """Role -> name; several tables if only the names inside attention are fixed."""
    model_types: tuple[str, ...] = ()
    """Values of ``model_type`` in ``config.json``."""
    pairs: Pairs = "adjacent"
    rope: Rope = "halves"
    optional: tuple[str, ...] = ("head",)
    """Roles that a model may lack, like a tied output matrix or a scale of the head norm."""
    has_code: bool = False
    """Whether transformers can run models of this layout."""


def _attention(before: str, roles: Collection[str], out: str = "o_proj") -> dict[str, str]:
    """Role -> name inside attention: as in this package, but the output projection is ``out``."""
    return {role: before + OUR_ENDINGS[role] for role in roles} | {"o": f"{before}{out}.weight"}


_SAVED_ENDINGS = tuple(f".{ending}" for ending in OUR_ENDINGS.values())
_OUTER = ("model.", "lm_head.")
_SELF, _BARE = "model.layers.{}.self_attn.", "layers.{}.attention."
_ORIGINAL = tuple(
    skeleton | _attention(before, _V1, out="out_proj")
    for skeleton, before in ((_HUGGING_FACE, _SELF), (_UNILM, _BARE))
)
_ORIGINAL_V2 = tuple(
    skeleton | _attention(before, _V2)
    for skeleton, before in ((_HUGGING_FACE, _SELF), (_UNILM, _BARE))
)
LAYOUTS = {
    row.name: row
    for row in (
        Layout(
            name="diffattn", title="DIFF Transformer of this package", attention_type="diff",
            model_types=("diff_transformer",), names=(), has_code=True,
        ),
        Layout(
            name="diffllama", title="Hugging Face DiffLlama", attention_type="diff",
            model_types=("diffllama",), pairs="split", has_code=True,
            names=(_HUGGING_FACE | _attention(_SELF, [r for r in _V1 if r != "subln"]),),
        ),
        Layout(
            name="original", title="original V1 code (unilm)", attention_type="diff",
            model_types=("original_diff_transformer",), rope="interleaved", names=_ORIGINAL,
            optional=("head", "subln"),
        ),
        Layout(
            name="original_v2", title="original V2 code (unilm)", attention_type="diff_v2",
            model_types=("original_diff_transformer_v2",), rope="interleaved",
            names=_ORIGINAL_V2,
        ),
        Layout(
            name="motif", title="Motif", attention_type="diff", model_types=("Motif", "motif"),
            names=(_HUGGING_FACE | _attention(_SELF, _V1),),
        ),
        Layout(
            name="llama", title="softmax model of the Llama family", attention_type="softmax",
            model_types=("llama", "mistral", "qwen2", "qwen3"),
            names=(_HUGGING_FACE | _attention(_SELF, (*_SOFTMAX, *_QWEN)),),
            optional=("head", *_QWEN), has_code=True,
        ),
    )
}  # fmt: skip
"""Name -> layout. Tensor names of ``diffattn`` come from the model: see ``our_parameters``."""


def layouts_of(names: Collection[str]) -> list[tuple[Layout, Mapping[str, str]]]:
    """Layouts that fit these tensor names, each with its table of names; often several fit."""
    first = {name for name in names if ".0." in f".{name}"}
    outside = {name for name in names if not any(part.isdecimal() for part in name.split("."))}
    present = first | outside
    matching: list[tuple[Layout, Mapping[str, str]]] = []
    if all(f".{name}".endswith(_SAVED_ENDINGS) and name.startswith(_OUTER) for name in present):
        matching.append((LAYOUTS["diffattn"], {}))
    for layout in LAYOUTS.values():
        for table in layout.names:
            known = {role: name.format(0) for role, name in table.items()}
            needed = {name for role, name in known.items() if role not in layout.optional}
            if needed <= present <= set(known.values()):
                matching.append((layout, table))
    return matching
