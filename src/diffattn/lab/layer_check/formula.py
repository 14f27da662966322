"""Differential attention on a layer's weights, as published or with some of its steps changed."""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

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
    """The same keys and ``norm``; a key is missing if the layer has no such bias."""
    lambdas: tuple[Tensor, ...] = ()
    """λ's vectors q1, k1, q2 and k2, ``[D]`` or ``[H, D]``; or one number ``[1]``; V2: empty."""
    norm: Tensor | None = None
    """Scale of the norm; ``None`` without one."""

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
    """The two halves of a value: ``adjacent`` side by side, ``split`` in rows i and i + Hkv."""
    positions: Positions = "none"
    """Pairs of rotary channels; ``joint`` rotates the vectors of both maps as one vector."""
    scale: Literal["head", "pair", "hidden", "none"] = "head"
    """Scores are divided by the square root of D, of 2D, of the width of the layer, or of 1."""
    mask: Literal["scores", "weights", "none"] = "scores"
    softmax: Literal["keys", "queries", "difference"] = "keys"
    lam: str = "exp"
    """A key of :data:`LAMBDAS`; for V2 ``logits`` leaves out the sigmoid."""
    lambda_init: float = 0.0
    combine: Literal["subtract", "add", "scale_both"] = "subtract"
    norm_over: Literal["head", "heads", "output", "tokens", "nothing"] = "head"
    centred: bool = False
    """The norm subtracts the mean first, as LayerNorm does."""
    factor: bool = True
    """Multiply by 1 − λ_init."""
    heads_first: bool = False
    """Join heads without moving the axis of heads behind the tokens."""
    eps: float = 1e-5


def _product(weights: LayerWeights, number: int) -> Tensor:
    """Products of the channels of q1 and k1 (``number`` 1) or of q2 and k2 (2)."""
    return weights.lambdas[2 * number - 2] * weights.lambdas[2 * number - 1]


def _exp(weights: LayerWeights, number: int) -> Tensor:
    return _product(weights, number).sum(-1).exp()


LAMBDAS: dict[str, Callable[[LayerWeights, float], Tensor]] = {
    "exp": lambda w, start: _exp(w, 1) - _exp(w, 2) + start,
    "sign": lambda w, start: _exp(w, 1) - (_exp(w, 2) + start),
    "sum": lambda w, start: _exp(w, 1) + _exp(w, 2) + start,
    "dots": lambda w, start: _product(w, 1).sum(-1) - _product(w, 2).sum(-1) + start,
    "mean": lambda w, start: (_product(w, 1).exp() - _product(w, 2).exp()).mean(-1) + start,
    "start": lambda w, start: w.matrices["q"].new_tensor(start),
    "number": lambda w, start: w.lambdas[0],
    "number_and_start": lambda w, start: w.lambdas[0] + start,
    "exp_number": lambda w, start: w.lambdas[0].exp() + start,
    "sigmoid_number": lambda w, start: w.lambdas[0].sigmoid(),
}
"""Functions of the weights and λ_init that return λ, ``[]``, ``[1]`` or ``[H]``."""


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
        lam = LAMBDAS[formula.lam](weights, formula.lambda_init).reshape(-1, 1, 1)
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
    scale = 1.0 if weights.norm is None else weights.norm
    bias = weights.biases.get("norm", 0.0)
    joined = out.transpose(1, 2)  # [B, T, H, Dv]
    if formula.norm_over in ("head", "tokens"):
        axes = (-1,) if formula.norm_over == "head" else (1, 3)
        if isinstance(scale, Tensor) and scale.numel() != weights.value_dim:
            scale = scale.view(weights.num_heads, -1)
        joined = _norm(joined, axes, formula) * scale + bias
    flat = joined.flatten(2)
    if formula.heads_first:
        flat = joined.transpose(1, 2).reshape(*joined.shape[:2], -1)
    if formula.norm_over == "heads":
        flat = _norm(flat, (-1,), formula) * scale + bias
    factor = 1.0 - formula.lambda_init if formula.factor else 1.0
    if formula.norm_over == "output":
        return factor * (_norm(_project(weights, "o", flat), (-1,), formula) * scale + bias)
    return _project(weights, "o", factor * flat)


def _norm(x: Tensor, axes: tuple[int, ...], formula: Formula) -> Tensor:
    if formula.centred:
        x = x - x.mean(axes, keepdim=True)
    return x * torch.rsqrt(x.square().mean(axes, keepdim=True) + formula.eps)


def _rotate(x: Tensor, positions: Positions) -> Tensor:
    """Rotate ``[B, T, heads, D]`` by positions from 0, with base 10,000."""
    if positions == "none":
        return x
    if positions == "joint":
        both = _rotate(x.unflatten(2, (-1, 2)).flatten(3), "halves")
        return both.unflatten(3, (2, -1)).flatten(2, 3)
    tokens, width = x.shape[1], x.shape[-1]
    frequency = 10_000.0 ** (-torch.arange(0, width, 2, dtype=x.dtype) / width)
    angle = (torch.arange(tokens)[:, None] * frequency)[:, None]  # [T, 1, D / 2]
    if positions == "interleaved":
        a, b = x[..., 0::2], x[..., 1::2]
    else:
        a, b = x.chunk(2, -1)
    turned = (a * angle.cos() - b * angle.sin(), b * angle.cos() + a * angle.sin())
    if positions == "interleaved":
        return torch.stack(turned, -1).flatten(-2)
    return torch.cat(turned, -1)
