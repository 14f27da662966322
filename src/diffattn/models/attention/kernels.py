"""Attention by one call of Hugging Face's interface per layer, or by the maps; layout of caches."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from transformers.cache_utils import Cache
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS
from transformers.models.llama.modeling_llama import eager_attention_forward

from diffattn.errors import ConfigError
from diffattn.models.configuration_diff_transformer import DiffTransformerConfig
from diffattn.ops.inputs import masking

IMPLEMENTATION = "diffattn"
"""Name of our operator as a Hugging Face ``attn_implementation``."""
ActingMap = Callable[[Tensor, Tensor, Tensor], Tensor]
"""A layer's ``acting_map(A1, A2, λ)``: returns the map that is multiplied with V."""


class AttentionMapRecorder(nn.Module):
    """A module that maps pass through, so that hooks for ``output_attentions`` can read them."""

    def forward(self, signed: Tensor, raw: Tensor) -> tuple[Tensor, Tensor]:
        """Return the map that acts on V, ``[B, H, T, S]``, and all maps, ``[B, H, maps, T, S]``."""
        return signed, raw


class KernelCall(nn.Module):
    """The call of Hugging Face's attention interface, with the attributes that kernels read.

    A separate module: vLLM searches the source of all modules for this call, and gives each module
    that has it a part of the cache.
    """

    is_causal = True

    def __init__(self, config: DiffTransformerConfig, layer_idx: int) -> None:
        super().__init__()
        self.config = config
        self.layer_idx = layer_idx
        self.scaling = config.head_dim**-0.5
        layer = config.of_layer(layer_idx)
        self.num_key_value_groups = layer.num_attention_heads // layer.num_key_value_heads
        self.times_stored = config.num_key_value_heads // layer.num_key_value_heads
        self.is_alone = layer.num_attention_heads != config.num_attention_heads
        self.width_in_vllm = heads_in_vllm(config)[2]

    def forward(
        self, implementation: str, q: Tensor, k: Tensor, v: Tensor, mask: Any, **kwargs: Any
    ) -> Tensor:
        """``[B, T, heads, D]``, perhaps with flattened axes, from q, k, v ``[B, heads, ., D]``."""
        if implementation == "vllm" and self.is_alone:
            raise ConfigError(
                "DiffTransformer: attention_type must give all layers as many heads for vLLM, got "
                f"{self.config.attention_type!r}."
            )
        engine = getattr(self, "attn", None)  # vLLM's, whose cache has heads of one width
        if engine is not None and engine.head_size != q.shape[-1]:
            raise ConfigError(
                f"DiffTransformer: vLLM's cache must have heads of width {q.shape[-1]}, got "
                f"{engine.head_size}. Leave the plugin 'diffattn' switched on."
            )
        attention = ALL_ATTENTION_FUNCTIONS.get_interface(implementation, eager_attention_forward)
        out, _ = attention(self, q, k, v, mask, dropout=0.0, scaling=self.scaling, **kwargs)
        return out


def heads_in_vllm(config: DiffTransformerConfig) -> tuple[int, int, int]:
    """Query heads, key/value heads and their width in vLLM.

    If all layers are V1, both keys are one head ``[k1, k2]`` as wide as a value, so the cache holds
    K and V once. The two queries are ``[q1, 0]`` and ``[0, q2]``. If V1 layers are mixed with other
    types, the layout is that of Hugging Face's kernels, which holds V1's K and V twice.
    """
    if all(facts.key_maps == 2 for facts in config.attention_by_layer):
        return config.num_attention_heads // 2, config.num_kv_heads, 2 * config.head_dim
    return config.num_attention_heads, config.num_key_value_heads, config.head_dim


def by_kernel(
    implementation: str,
    kernel: KernelCall,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    lam: Tensor | None,
    mask: Tensor | None,
    kwargs: dict[str, Any],
) -> Tensor:
    """Attention by one call of a kernel that pairs query, key and value heads of one width.

    V1 becomes ``Q = [q1, q2, q1, q2]``, ``K = [k1, k2, k1, k2]``, ``V = [left, left, right,
    right]``, each along the axis of heads. The two query heads of V2 need no change. Subtracted
    queries of groups are repeated. In vLLM V1 has wider heads, see :func:`heads_in_vllm`. ``mask``
    is in the form of the kernel ``implementation``, which gets ``kwargs``, too.
    """
    q = q if lam is None else masking.paired(q)
    num_heads = q.shape[2]
    pieces = 2 if k.ndim == 5 else 1
    if implementation == "vllm" and kernel.width_in_vllm > q.shape[-1]:
        width, pieces = q.shape[-1], 1
        q_1, q_2 = q.unbind(3)
        q = torch.stack([nn.functional.pad(q_1, (0, width)), nn.functional.pad(q_2, (width, 0))], 3)
        k = k.flatten(3)
    if pieces == 2:
        q = torch.cat([*q.unbind(3)] * 2, dim=2)
        k, v = in_kernel_layout(k, v)
    else:
        q = q if lam is None else q.flatten(2, 3)
        k, v = k.transpose(1, 2), v.transpose(1, 2)
    heads = q.shape[2]
    if kernel.times_stored > 1 and kwargs.get("cache") is not None:  # pages fit the widest layer
        q = q.repeat(1, 1, kernel.times_stored, 1)
        k, v = (x.repeat(1, kernel.times_stored, 1, 1) for x in (k, v))
    out = kernel(implementation, q.transpose(1, 2), k, v, mask, **kwargs)
    out = out.view(*q.shape[:2], -1, q.shape[-1])[:, :, :heads]  # [B, T, heads of the call, D]
    if lam is None:
        return out
    lam = lam.expand(*out.shape[:2], num_heads)[..., None]
    if pieces == 2:
        out_1, out_2 = out.unflatten(2, (2, 2, num_heads)).unbind(3)  # [B, T, halves, H, D]
        out_1, out_2 = (x.transpose(2, 3).flatten(3) for x in (out_1, out_2))
    else:
        out_1, out_2 = out.unflatten(2, (num_heads, 2)).unbind(3)
    return (out_1 - lam * out_2).to(q.dtype)


def lam_of_rows(lam: Tensor, q: Tensor) -> Tensor:
    """λ for every row of the maps, ``[B, H, T, 1]``; ``lam`` broadcasts to ``[B, T, H]``."""
    return lam.expand(*q.shape[:2], masking.num_heads_of(q)).transpose(1, 2)[..., None]


def through_maps(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    lam: Tensor | None,
    mask: Tensor | None,
    *,
    acting_map: ActingMap | None,
    recorder: AttentionMapRecorder | None,
) -> Tensor:
    """Attention by its definition: the maps, their difference, the product with V.

    The output is computed from the recorder's result, so gradients of maps can be read there too.
    A query that sees no key gets 0. ``mask`` is ``[B or 1, 1, T, S]``, True where a key is seen, or
    numbers to add to the scores.
    """
    q = masking.paired(q) if q.ndim == 5 else q[:, :, :, None]
    num_heads, dtype = q.shape[2], q.dtype
    k = masking.repeat_heads(k if k.ndim == 5 else k[:, :, :, None], num_heads)
    q, k = masking.in_range(q), masking.in_range(k)
    scores = q.permute(0, 2, 3, 1, 4) @ k.permute(0, 2, 3, 4, 1)  # [B, H, maps, T, S]
    scores = masking.at_least_float32(scores) * q.shape[-1] ** -0.5
    if mask is not None:
        mask = mask[:, :, None]
        if mask.dtype == torch.bool:
            scores = scores.masked_fill(~mask, -torch.inf)
        else:
            scores = scores + mask
        sees_none = (scores == -torch.inf).all(-1, keepdim=True)
        raw = scores.masked_fill(sees_none, 0).softmax(-1).masked_fill(sees_none, 0)
    else:
        raw = scores.softmax(-1)
    signed = raw[:, :, 0]
    if acting_map is not None and lam is not None:
        signed = acting_map(signed, raw[:, :, 1], lam_of_rows(lam, q))
    elif lam is not None:
        signed = signed - lam_of_rows(lam, q) * raw[:, :, 1]
    if recorder is not None:
        signed, _ = recorder(signed, raw)
    values = masking.repeat_heads(v, num_heads).transpose(1, 2)  # [B, H, S, Dv]
    return (signed.to(dtype) @ values).transpose(1, 2)


def update_cache(cache: Cache, k: Tensor, v: Tensor, layer_idx: int) -> tuple[Tensor, Tensor]:
    """Append keys ``[B, T, Hkv, (maps,) D]`` and values ``[B, T, Hkv, Dv]``; return all of them.

    The keys of both maps are stored as one head, ``[B, Hkv, S, 2D]``, as wide as a value, and
    returned as views. An exporter or a learned prefix makes a cache by ``num_key_value_heads``, in
    the layout of :func:`in_kernel_layout`. A static cache keeps this layout, at twice the memory; a
    dynamic one is made compact. In either, a layer with one key per head repeats its heads.
    """
    if k.ndim == 4:
        times = _stored_heads(cache, layer_idx, k.shape[2]) // k.shape[2]
        stored = (
            x.transpose(1, 2).repeat(1, times, 1, 1) if times > 1 else x.transpose(1, 2)
            for x in (k, v)
        )
        keys, values = cache.update(*stored, layer_idx)
        return keys[:, : k.shape[2]].transpose(1, 2), values[:, : k.shape[2]].transpose(1, 2)
    num_heads, num_maps = k.shape[2:4]
    if _stored_heads(cache, layer_idx, num_heads) == 4 * num_heads:
        layer = cache.layers[layer_idx]
        if layer.is_compileable:
            keys, values = cache.update(*in_kernel_layout(k, v), layer_idx)
            keys = keys[:, : 2 * num_heads].unflatten(1, (2, num_heads)).permute(0, 3, 2, 1, 4)
            left, _, right, _ = values.chunk(4, dim=1)
            return keys, torch.cat([left, right], dim=-1).transpose(1, 2)
        layer.keys, layer.values = _compact(layer.keys, layer.values)
    k, v = cache.update(k.flatten(3).transpose(1, 2), v.transpose(1, 2), layer_idx)
    return k.transpose(1, 2).unflatten(-1, (num_maps, -1)), v.transpose(1, 2)


def in_kernel_layout(k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
    """Keys ``[B, S, Hkv, 2, D]`` and values ``[B, S, Hkv, 2D]`` of V1 as ``[B, 4 Hkv, S, D]``."""
    k = torch.cat([*k.unbind(3)] * 2, dim=2)
    left, right = v.chunk(2, dim=-1)
    v = torch.cat([left, left, right, right], dim=2)
    return k.transpose(1, 2), v.transpose(1, 2)


def _stored_heads(cache: Cache, layer_idx: int, num_heads: int) -> int:
    """Heads in a layer of the cache; ``num_heads`` if the layer is still empty."""
    layers = getattr(cache, "layers", ())
    keys = getattr(layers[layer_idx], "keys", None) if layer_idx < len(layers) else None
    return keys.shape[1] if keys is not None and keys.ndim == 4 else num_heads


def _compact(keys: Tensor, values: Tensor) -> tuple[Tensor, Tensor]:
    """Keys and values ``[B, 4 Hkv, S, D]`` as ``[B, Hkv, S, 2D]``: the mean of the two copies of
    each number, which passes gradients to both if they are learned."""
    first, second, again, once_more = keys.chunk(4, dim=1)
    left, left_again, right, right_again = values.chunk(4, dim=1)
    keys = torch.cat([(first + again) / 2, (second + once_more) / 2], dim=-1)
    return keys, torch.cat([(left + left_again) / 2, (right + right_again) / 2], dim=-1)
