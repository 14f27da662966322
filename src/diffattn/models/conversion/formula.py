"""The published formula of layouts whose code no library has, evaluated on their own tensors.

Written apart from our layers and operators, on the source's own order of heads and channels, so
that a conversion is checked against something else than itself. One layer is in memory at a time.
"""

import math
from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn import functional as F
from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding

from diffattn.models.configuration_diff_transformer import DiffTransformerConfig
from diffattn.models.conversion.layouts import LAMBDAS, Layout

Read = Callable[[str, int | None], Tensor | None]
"""A tensor of the source by role and layer, in the dtype to compute in; ``None`` if absent."""


def formula_logits(
    read: Read, layout: Layout, config: DiffTransformerConfig, ids: Tensor
) -> Tensor:
    """Logits ``[B, T, vocab_size]`` of a model in a published layout, for ``ids`` ``[B, T]``.

    ``read`` gives its tensors; ``config`` gives sizes, eps and rotary positions.
    """
    embedding = _require_tensor(read("embed", None))
    x = F.embedding(ids, embedding)
    cos, sin = LlamaRotaryEmbedding(config)(x, torch.arange(ids.shape[1])[None])
    half = config.head_dim // 2
    angles = cos[0, :, :half], sin[0, :, :half]  # [T, D / 2]
    for layer in range(config.num_hidden_layers):
        tensors = {role: read(role, layer) for role in layout.names[0]}
        inputs = _norm(x, tensors["input_norm"], config.rms_norm_eps)
        x = x + _attention(inputs, tensors, layout, config, angles, layer + layout.lambda_shift)
        inputs = _norm(x, tensors["post_norm"], config.rms_norm_eps)
        gate, up, down = (_require_tensor(tensors[role]) for role in ("gate", "up", "down"))
        x = x + (F.silu(inputs @ gate.T) * (inputs @ up.T)) @ down.T
    head = read("head", None)
    return (
        _norm(x, read("norm", None), config.rms_norm_eps) @ (embedding if head is None else head).T
    )


def _attention(
    x: Tensor,
    tensors: dict[str, Tensor | None],
    layout: Layout,
    config: DiffTransformerConfig,
    angles: tuple[Tensor, Tensor],
    depth: int,
) -> Tensor:
    """Query heads 2i and 2i + 1 subtracted, keys likewise (V1) or shared (V2); or the last query
    head of R + 1 from each of the others."""
    heads, kv_heads, width = config.num_heads, config.num_kv_heads, config.head_dim
    ratio = config.group_ratio or 1
    w = {role: tensor for role, tensor in tensors.items() if tensor is not None}
    q = _rotate((x @ w["q"].T).unflatten(-1, (-1, width)), angles, layout.rope)
    v1 = "lambda_proj" not in w
    k = (x @ w["k"].T).unflatten(-1, (kv_heads * (2 if v1 else 1), width))
    k = _rotate(k, angles, layout.rope)
    v = (x @ w["v"].T).unflatten(-1, (kv_heads, -1))
    hidden = torch.ones(x.shape[1], x.shape[1], dtype=torch.bool).triu(1)
    outputs = []
    for head in range(heads):
        group = head // (heads // kv_heads)
        maps = []
        first = (ratio + 1) * (head // ratio)  # query head of its group
        for number, query in enumerate((first + head % ratio, first + ratio)):
            key = k[:, :, 2 * group + number] if v1 else k[:, :, group]
            scores = q[:, :, query] @ key.transpose(1, 2) / math.sqrt(width)
            maps.append(scores.masked_fill(hidden, -math.inf).softmax(-1))
        if v1:
            q1, k1, q2, k2 = (w[name] for name in LAMBDAS)
            lambda_init = 0.8 - 0.6 * math.exp(-0.3 * depth)
            lam = torch.exp(q1 @ k1) - torch.exp(q2 @ k2) + lambda_init
            out = (maps[0] - lam * maps[1]) @ v[:, :, group]
            norm = _norm(out, w.get("subln"), config.head_norm_eps)
            outputs.append((1 - lambda_init) * norm)
        else:
            lam = torch.sigmoid(x @ w["lambda_proj"][head])[:, :, None]
            outputs.append(maps[0] @ v[:, :, group] - lam * (maps[1] @ v[:, :, group]))
    return torch.cat(outputs, -1) @ w["o"].T


def _rotate(x: Tensor, angles: tuple[Tensor, Tensor], rope: str) -> Tensor:
    cos, sin = (angle[:, None] for angle in angles)  # [T, 1, D / 2]
    if rope == "interleaved":
        a, b = x[..., 0::2], x[..., 1::2]
        return torch.stack((a * cos - b * sin, a * sin + b * cos), -1).flatten(-2)
    a, b = x.chunk(2, -1)
    return torch.cat((a * cos - b * sin, a * sin + b * cos), -1)


def _norm(x: Tensor, weight: Tensor | None, eps: float) -> Tensor:
    x = x * torch.rsqrt(x.square().mean(-1, keepdim=True) + eps)
    return x if weight is None else x * weight


def _require_tensor(tensor: Tensor | None) -> Tensor:
    assert tensor is not None, "checked when the model was read"
    return tensor
