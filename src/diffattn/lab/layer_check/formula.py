"""Differential attention on a layer's weights, as published or with known mistakes."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor

from diffattn.ops.inputs.formulas import apply_rotary, rotary_embedding

Pairs = Literal["adjacent", "split", "repeated"]
Positions = Literal["none", "halves", "interleaved", "joint"]


@dataclass(frozen=True, kw_only=True, slots=True)
class LayerWeights:
    """Weights of a layer by role, float64. A matrix is ``[outputs, inputs]``."""

    attention_type: str
    num_heads: int
    num_kv_heads: int
    head_dim: int
    matrices: Mapping[str, Tensor]
    """Keys ``q``, ``k``, ``v``, ``o``, and ``lambda_proj`` for V2."""
    biases: Mapping[str, Tensor]
    lambdas: tuple[Tensor, ...] = ()
    """λ's vectors q1, k1, q2 and k2, ``[D]`` or ``[H, D]``; V2: empty."""
    norm: Tensor | None = None
    """Scale and bias of the norm, ``[2, channels]``."""

    @property
    def value_dim(self) -> int:
        """Width of one value."""
        return self.matrices["v"].shape[0] // self.num_kv_heads


@dataclass(frozen=True, kw_only=True, slots=True)
class Formula:
    """The steps of one layer. The defaults are V1 as published, without positions."""

    query_pairs: Pairs = "adjacent"
    """Query rows of head i: ``adjacent`` 2i and 2i + 1, ``split`` i and i + H."""
    key_pairs: Pairs = "adjacent"
    """The same for keys; ``repeated``: query row j reads key row j // (queries per key)."""
    value_halves: Pairs = "adjacent"
    positions: Positions = "none"
    """Pairs of rotary channels; ``joint`` rotates the vectors of both maps as one vector."""
    scale: Literal["head", "pair", "hidden", "none"] = "head"
    """Scores are divided by the square root of D, of 2D, of the width of the layer, or of 1."""
    mask: Literal["scores", "weights", "none"] = "scores"
    softmax: Literal["keys", "queries", "difference"] = "keys"
    lam: str = "exp"
    """A form of λ in :func:`layer_lambda`; for V2 ``logits`` leaves out the sigmoid."""
    lambda_init: float = 0.0
    combine: Literal["subtract", "add", "scale_both"] = "subtract"
    norm_over: Literal["head", "heads", "output", "tokens", "nothing"] = "head"
    centred: bool = False
    factor: bool = True
    """Multiply by 1 − λ_init."""
    heads_first: bool = False
    """Join heads without moving the axis of heads behind the tokens."""
    eps: float = 1e-5


def layer_lambda(weights: LayerWeights, formula: Formula) -> Tensor:
    """λ of V1, ``[]`` or ``[H]``."""
    start, (q1, k1, q2, k2) = formula.lambda_init, weights.lambdas
    first, second = (q1 * k1).sum(-1), (q2 * k2).sum(-1)
    return {
        "exp": first.exp() - second.exp() + start,
        "sign": first.exp() - (second.exp() + start),
        "sum": first.exp() + second.exp() + start,
        "dots": first - second + start,
        "mean": ((q1 * k1).exp() - (q2 * k2).exp()).mean(-1) + start,
        "start": first.new_tensor(start),
    }[formula.lam]


def attend(weights: LayerWeights, formula: Formula, x: Tensor) -> Tensor:
    """The layer's output for ``x`` ``[B, T, hidden]``, in float64."""
    heads, kv_heads, width = weights.num_heads, weights.num_kv_heads, weights.head_dim
    v2 = weights.attention_type == "diff_v2"
    q, k, v = (_project(weights, role, x) for role in ("q", "k", "v"))
    q = _rotate(q.unflatten(-1, (2 * heads, width)), formula.positions)
    k = _rotate(k.unflatten(-1, (-1, width)), formula.positions)
    v = v.unflatten(-1, (kv_heads, -1))
    if formula.value_halves == "split":
        v = v.flatten(2).unflatten(-1, (2, kv_heads, -1)).transpose(2, 3).flatten(3)
    query = _pair_rows(heads, formula.query_pairs)
    group = torch.arange(heads)[:, None].expand(-1, 2) // (heads // kv_heads)
    if formula.key_pairs == "repeated":
        key = query * k.shape[2] // (2 * heads)
    else:
        key = group if v2 else _pair_rows(kv_heads, formula.key_pairs)[group[:, 0]]
    value = key if v2 else group
    scores = torch.einsum("bthmd,bshmd->bhmts", q[:, :, query], k[:, :, key])
    divisor = {"head": width, "pair": 2 * width, "hidden": x.shape[-1], "none": 1}[formula.scale]
    if v2:  # λ broadcasts to [B, H, T, 1]
        lam = _project(weights, "lambda_proj", x).transpose(1, 2)[..., None]
        lam = lam if formula.lam == "logits" else lam.sigmoid()
    else:
        lam = layer_lambda(weights, formula).reshape(-1, 1, 1)
    maps = _weights_of_keys(scores / math.sqrt(divisor), lam, formula)
    parts = torch.einsum("bhmts,bshmc->bhmtc", maps, v[:, :, value])
    first, second = parts.unbind(2)
    if formula.softmax == "difference":
        out = first
    elif formula.combine == "scale_both":
        out = lam * (first - second)
    else:
        out = first - lam * second if formula.combine == "subtract" else first + lam * second
    return _finish(weights, formula, out)


def _project(weights: LayerWeights, role: str, x: Tensor) -> Tensor:
    return x @ weights.matrices[role].T + weights.biases.get(role, 0.0)


def _pair_rows(heads: int, pairs: Pairs) -> Tensor:
    """Rows of both maps of every head, ``[H, 2]``."""
    rows = torch.arange(2 * heads)
    return rows.view(2, heads).T if pairs == "split" else rows.view(heads, 2)


def _weights_of_keys(scores: Tensor, lam: Tensor, formula: Formula) -> Tensor:
    """Both maps, ``[B, H, 2, T, S]``."""
    if formula.softmax == "difference":
        scores = (scores[:, :, 0] - lam * scores[:, :, 1])[:, :, None].expand_as(scores)
    future = torch.ones(scores.shape[-2:], dtype=torch.bool).triu(1)
    if formula.mask == "scores":
        scores = scores.masked_fill(future, -math.inf)
    maps = scores.softmax(-2 if formula.softmax == "queries" else -1)
    return maps.masked_fill(future, 0.0) if formula.mask == "weights" else maps


def _finish(weights: LayerWeights, formula: Formula, out: Tensor) -> Tensor:
    """Norm, factor and output projection of heads ``[B, H, T, Dv]``."""
    joined = out.transpose(1, 2)  # [B, T, H, Dv]
    if formula.norm_over in ("head", "tokens"):
        joined = _norm(weights, formula, joined)
    flat = joined.flatten(2)
    if formula.heads_first:
        flat = joined.transpose(1, 2).reshape(flat.shape)
    if formula.norm_over == "heads":
        flat = _norm(weights, formula, flat)
    factor = 1.0 - formula.lambda_init if formula.factor else 1.0
    if formula.norm_over == "output":
        return factor * _norm(weights, formula, _project(weights, "o", flat))
    return _project(weights, "o", factor * flat)


def _norm(weights: LayerWeights, formula: Formula, x: Tensor) -> Tensor:
    """Normalise; the scale may be of one head or of all. One of another size is not used."""
    axes = (1, 3) if formula.norm_over == "tokens" else (-1,)
    if formula.centred:
        x = x - x.mean(axes, keepdim=True)
    x = x * torch.rsqrt(x.square().mean(axes, keepdim=True) + formula.eps)
    for shape in (x.shape[-1:], x.shape[2:]):
        if weights.norm is not None and weights.norm.shape[1] == shape.numel():
            scale, bias = weights.norm.view(2, *shape)
            return x * scale + bias
    return x


def _rotate(x: Tensor, positions: Positions) -> Tensor:
    """Rotate ``[B, T, heads, D]`` by positions from 0; ``interleaved`` channels change places."""
    if positions == "none":
        return x
    if positions == "joint":
        both = _rotate(x.unflatten(2, (-1, 2)).flatten(3), "halves")
        return both.unflatten(3, (2, -1)).flatten(2, 3)
    if positions == "interleaved":  # products of queries and keys do not depend on the order
        x = x.unflatten(-1, (-1, 2)).mT.flatten(-2)
    cos, sin = rotary_embedding(torch.arange(x.shape[1]), x.shape[-1])
    return apply_rotary(x, cos.to(x), sin.to(x))


@dataclass(frozen=True, slots=True)
class Mistake:
    """A mistake of public implementations, and the steps of the formula that it changes."""

    name: str
    changes: dict[str, Any]
    """Fields of :class:`Formula` and their wrong values."""
    leaks: bool = False
    """Whether a token's output depends on later tokens."""
    attention_types: tuple[str, ...] = ("diff",)


_EVERY = ("diff", "diff_v2")
PLANTED = (
    Mistake("lambda_init_sign", {"lam": "sign"}),
    Mistake("lambda_sum", {"lam": "sum"}),
    Mistake("lambda_without_exp", {"lam": "dots"}),
    Mistake("lambda_mean_of_exp", {"lam": "mean"}),
    Mistake("lambda_vectors_unused", {"lam": "start"}),
    Mistake("not_causal", {"mask": "none"}, leaks=True, attention_types=_EVERY),
    Mistake("mask_after_softmax", {"mask": "weights"}, leaks=True, attention_types=_EVERY),
    Mistake("softmax_over_queries", {"softmax": "queries"}, leaks=True, attention_types=_EVERY),
    Mistake("softmax_of_difference", {"softmax": "difference"}, attention_types=_EVERY),
    Mistake("maps_added", {"combine": "add"}, attention_types=_EVERY),
    Mistake("lambda_scales_both", {"combine": "scale_both"}, attention_types=_EVERY),
    Mistake("scale_of_pair", {"scale": "pair"}, attention_types=_EVERY),
    Mistake("scale_of_layer", {"scale": "hidden"}, attention_types=_EVERY),
    Mistake("no_scale", {"scale": "none"}, attention_types=_EVERY),
    Mistake("no_factor", {"factor": False}),
    Mistake("no_head_norm", {"norm_over": "nothing", "factor": False}),
    Mistake("no_norm", {"norm_over": "nothing"}),
    Mistake("norm_over_heads", {"norm_over": "heads"}),
    Mistake("norm_after_output", {"norm_over": "output"}),
    Mistake("norm_over_tokens", {"norm_over": "tokens"}, leaks=True),
    Mistake("norm_centred", {"centred": True}),
    Mistake("norm_in_v2", {"norm_over": "head"}, attention_types=("diff_v2",)),
    Mistake("no_sigmoid", {"lam": "logits"}, attention_types=("diff_v2",)),
    Mistake(
        "pairs_of_other_keys",
        {"query_pairs": "split", "key_pairs": "repeated"},
        attention_types=("diff_v2",),
    ),
    Mistake("repeated_keys", {"key_pairs": "repeated"}),
    Mistake("mixed_pairs", {"query_pairs": "adjacent", "key_pairs": "split"}),
    Mistake("rotated_pairs", {"positions": "joint"}, attention_types=_EVERY),
    Mistake("heads_not_moved", {"heads_first": True}, leaks=True, attention_types=_EVERY),
)
"""Mistakes that are found by comparing the layer's output with the changed formula."""
TEXTS = {
    "lambda_init_sign": "λ is e^(q1·k1) − (e^(q2·k2) + λ_init): λ_init must be added, not "
    "subtracted.",
    "lambda_sum": "λ adds both exponentials: the second must be subtracted.",
    "lambda_without_exp": "λ is made of the dot products: each must go through exp.",
    "lambda_mean_of_exp": "exp is taken channel by channel: sum the products over channels first.",
    "lambda_vectors_unused": "λ is λ_init: its four vectors do not enter.",
    "not_causal": "Nothing hides later tokens, as with an additive mask of zeros: scores of later "
    "keys must be −∞ before the softmax.",
    "mask_after_softmax": "The mask is applied after the softmax: later keys still share in its "
    "sum.",
    "softmax_over_queries": "The softmax runs over queries: it must run over keys.",
    "softmax_of_difference": "One softmax of the subtracted scores: each map needs its own, "
    "subtracted after.",
    "maps_added": "λ times the second map is added: it must be subtracted.",
    "lambda_scales_both": "λ multiplies both maps: only the second has it.",
    "scale_of_pair": "Scores are divided by √(2d): d is the width of one query, not of the pair.",
    "scale_of_layer": "Scores are divided by the root of the layer's width: d is the width of one "
    "query.",
    "no_scale": "Scores are not divided by √d.",
    "no_factor": "The factor 1 − λ_init after the norm is missing.",
    "no_head_norm": "Heads are neither normalised nor multiplied by 1 − λ_init.",
    "no_norm": "Heads are not normalised: RMSNorm over the 2d channels of each head is missing.",
    "norm_over_heads": "One norm runs over all heads together: every head has its own.",
    "norm_after_output": "The norm follows the output projection: it belongs on every head, before "
    "it.",
    "norm_over_tokens": "The norm's mean runs over tokens too, as nn.GroupNorm does on [B, "
    "channels, T].",
    "norm_centred": "The norm subtracts the mean (LayerNorm or GroupNorm): the paper uses RMSNorm.",
    "norm_in_v2": "Heads are normalised: V2 has no head norm.",
    "no_sigmoid": "λ is the projection itself: V2 takes its sigmoid.",
    "pairs_of_other_keys": "The two queries of a pair read different keys and values: pair heads "
    "2i and 2i + 1, not i and i + H.",
    "repeated_keys": "Repeating keys over groups parts the pairs: both queries of a head read one "
    "key.",
    "mixed_pairs": "Queries pair heads 2i and 2i + 1, keys i and i + H: use one order for both.",
    "rotated_pairs": "Rotary positions turn both maps as one vector of 2d: rotate every query by "
    "itself.",
    "heads_not_moved": "Heads are joined by a reshape that mixes heads with tokens: move the axis "
    "of heads behind the tokens first.",
}
FACTS = {
    "zero_vectors": "All four vectors of λ start at zero, so their gradients are exactly 0 for "
    "ever: draw them from N(0, 0.1²).",
    "detached_lambda": "No gradient reaches the parameters of λ: it is cut from the graph.",
    "wide_start": "The vectors of λ start with a deviation of {value:.2f}, the paper's with 0.1: "
    "so λ starts far from λ_init.",
    "lambda_by_head": "Every head has a λ of its own: the heads of a layer share one.",
    "lambda_init_depth": "λ_init is {value:.4f} where the schedule of layer index {index} gives "
    "{right:.4f}: 0.8 − 0.6 e^(−0.3 index), index from 0.",
    "lambda_init_constant": "λ_init is {value:.4f} in every layer: the paper's grows with depth, "
    "0.8 − 0.6 e^(−0.3 index).",
    "narrow_values": "Values are as wide as one query: V1 has half the heads and values of 2d.",
    "heads_not_halved": "Queries have twice the layer's width, so the layer has twice the "
    "weights of softmax attention: take half the heads.",
}
"""Names and message templates of mistakes that show in the layer's shapes, values or gradients."""
