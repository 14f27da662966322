"""Between a layer and its cache: one attention call per layer, by our operator or Hugging Face's.

What is stored per token, for K and for V alike (H heads, Hkv key/value heads, D ``head_dim``):

=================== ======================= ========================= =======================
attention type      dynamic, static cache   paged cache (HF kernels)  query heads of the call
=================== ======================= ========================= =======================
softmax             Hkv heads of D          Hkv heads of D            H
diff, shared_diff   Hkv heads of 2D         4 Hkv heads of D          4 H
diff_v2             Hkv heads of D          Hkv heads of D            2 H
=================== ======================= ========================= =======================

Caches keyed by layer keep one K and V per layer, so a second call would overwrite the first
(transformers' DiffLlama does). Hugging Face's kernels pair query, key and value heads one to one
at one width, so V1 becomes ``Q = [q1, q2, q1, q2]``, ``K = [k1, k2, k1, k2]``,
``V = [left, left, right, right]``; a paged cache, which stores what it is called with, then holds K
and V twice.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from transformers.cache_utils import Cache
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS
from transformers.models.llama.modeling_llama import eager_attention_forward

from diffattn.errors import ConfigError
from diffattn.models.configuration_diff_transformer import DiffTransformerConfig
from diffattn.ops import backends
from diffattn.ops.diff_attention.api import diff_attention, diff_attention_maps
from diffattn.ops.softmax_attention import softmax_attention, softmax_attention_maps

IMPLEMENTATION = "diffattn"


class KeyMask(NamedTuple):
    """Masking options of the operator for one forward pass of the model."""

    key_padding_mask: Tensor | None = None
    kv_lengths: Tensor | None = None
    cu_seqlens: Tensor | None = None


class AttentionMapRecorder(nn.Module):
    """The point where ``output_attentions`` and ``output_attention_maps`` read the maps."""

    def forward(self, signed: Tensor, raw: Tensor) -> tuple[Tensor, Tensor]:
        """Pass through ``[B, H, T, S]`` (what acts on V) and ``[B, H, maps, T, S]``."""
        return signed, raw


def bind(
    layer: Any,
    config: DiffTransformerConfig,
    *,
    mask: Any,
    past_key_values: Cache | None,
    recorder: AttentionMapRecorder | None,
    **kwargs: Any,
) -> Callable[..., Tensor]:
    """The ``attend`` of one layer in one forward pass.

    Args:
        layer: An attention layer of ours.
        config: The model's configuration.
        mask: A :class:`KeyMask` under ``"diffattn"``, else what Hugging Face's kernel takes.
        past_key_values: Cache to read and extend, or ``None``.
        recorder: Given when maps are wanted.
        **kwargs: Passed to Hugging Face's kernel, for example a paged cache.

    Returns:
        A function ``attend(q, k, v, lam=None)`` with the operator's shapes.
    """

    def attend(q: Tensor, k: Tensor, v: Tensor, lam: Tensor | None = None) -> Tensor:
        if past_key_values is not None:
            k, v = _update(past_key_values, k, v, layer.layer_idx)
        if config._attn_implementation == IMPLEMENTATION:
            options = mask._asdict() if mask is not None else {}
            if recorder is not None:
                _record(recorder, layer, q, k, lam, options)
            if lam is None:
                return softmax_attention(q, k, v, backend=config.attention_backend, **options)
            if config.attention.map_norm:
                return layer.operator(q, k, v, lam, **options)
            return diff_attention(q, k, v, lam, backend=config.attention_backend, **options)
        return _hugging_face(layer, config, mask, recorder, kwargs, q, k, v, lam)

    return attend


def chosen_backend(
    config: DiffTransformerConfig,
    *,
    device: str,
    dtype: torch.dtype,
    batch: int,
    num_tokens: int,
    elsewhere: bool = False,
) -> str:
    """The backend that ``"diffattn"`` trains with on ``[batch, num_tokens]``.

    Args:
        config: The model's configuration.
        device: Device type.
        dtype: Of the queries.
        batch: Rows.
        num_tokens: Per row.
        elsewhere: Whether another machine is meant, with every backend of its device.

    Returns:
        A name from ``backends.names(config.attention_op)``.

    Raises:
        BackendError: The configured backend cannot run these inputs.
    """
    if config.attention.map_norm:
        return "reference"
    is_softmax = config.attention_op == "softmax_attention"
    inputs = backends.Inputs(
        device=device,
        dtype=dtype,
        batch=batch,
        num_heads=config.num_attention_heads if is_softmax else config.num_heads,
        num_queries=num_tokens,
        num_keys=num_tokens,
        head_dim=config.head_dim,
        value_dim=config.cached_kv_shape[1],
        needs_gradient=True,
        elsewhere=elsewhere,
    )
    return backends.resolve(config.attention_op, config.attention_backend, inputs)


def prepare(layer: Any, config: DiffTransformerConfig) -> None:
    """Give a layer the attributes that Hugging Face's kernels read off their module."""
    layer.config = config
    layer.is_causal = True
    layer.scaling = config.head_dim**-0.5
    layer.num_key_value_groups = config.num_attention_heads // config.num_key_value_heads


def key_mask(
    attention_mask: Tensor | None,
    position_ids: Tensor | None,
    past_key_values: Cache | None,
    inputs_embeds: Tensor,
    cu_seqlens: Tensor | None = None,
) -> KeyMask:
    """Translate Hugging Face's mask, cache and positions into options of the operator.

    Args:
        attention_mask: ``[B, keys]``, non-zero where a token is real, or ``None``.
        position_ids: The caller's own ``[B or 1, T]``; restarts mark documents of a packed row.
        past_key_values: Cache before this pass, or ``None``.
        inputs_embeds: ``[B, T, hidden_size]``.
        cu_seqlens: int32 ``[num_docs + 1]`` of a packed row, or ``None``.

    Returns:
        The options that are needed; the others are ``None``.

    Raises:
        ConfigError: A 4-dimensional mask, one of another length, or packed documents in a batch
            of several rows.
    """
    batch, num_queries = inputs_embeds.shape[:2]
    num_keys, kv_lengths = num_queries, None
    if past_key_values is not None:
        num_keys, _ = past_key_values.get_mask_sizes(num_queries, 0)
        seen = past_key_values.get_seq_length()
        if past_key_values.is_compileable:  # preallocated: the tail is not written yet
            seen = torch.as_tensor(seen, device=inputs_embeds.device, dtype=torch.int32)
            kv_lengths = (seen + num_queries).expand(batch)
    if attention_mask is None:
        if cu_seqlens is None and past_key_values is None and position_ids is not None:
            cu_seqlens = _document_borders(position_ids, batch)
        return KeyMask(kv_lengths=kv_lengths, cu_seqlens=cu_seqlens)
    if attention_mask.ndim != 2:
        raise ConfigError(
            "DiffTransformer: under attn_implementation 'diffattn' attention_mask must be "
            f"[B, keys], got {list(attention_mask.shape)}. Use 'sdpa' or 'eager' for other masks."
        )
    missing = num_keys - attention_mask.shape[1]
    if missing < 0 or (missing and kv_lengths is None):
        raise ConfigError(
            f"DiffTransformer: attention_mask must cover all {num_keys} keys, cached and new, "
            f"got {attention_mask.shape[1]}."
        )
    padding = attention_mask.to(inputs_embeds.device, torch.bool)
    if not torch.compiler.is_compiling() and bool(padding.all()):
        return KeyMask(kv_lengths=kv_lengths, cu_seqlens=cu_seqlens)
    padding = nn.functional.pad(padding, (0, missing), value=True)  # kv_lengths hides the tail
    return KeyMask(padding, kv_lengths, cu_seqlens)


def positions(
    inputs_embeds: Tensor, past_key_values: Cache | None, cu_seqlens: Tensor | None
) -> Tensor:
    """Positions of the new tokens, counted from the cache's length or from each document's start.

    Args:
        inputs_embeds: ``[B, T, hidden_size]``.
        past_key_values: Cache before this pass, or ``None``.
        cu_seqlens: int32 ``[num_docs + 1]`` of a packed row, or ``None``.

    Returns:
        int64 ``[1, T]``.
    """
    seen = 0 if past_key_values is None else past_key_values.get_seq_length()
    index = torch.arange(inputs_embeds.shape[1], device=inputs_embeds.device)
    if cu_seqlens is not None:
        borders = cu_seqlens.to(index)
        index = index - borders[torch.bucketize(index, borders[1:], right=True)]
    return (index + seen).unsqueeze(0)


def _document_borders(position_ids: Tensor, batch: int) -> Tensor | None:
    """Borders where the positions restart, or ``None`` if they never do."""
    if torch.compiler.is_compiling():
        return None  # depends on the values: compiled callers pass cu_seq_lens_q
    starts = (position_ids[:, 1:] - position_ids[:, :-1] != 1).nonzero()
    if not len(starts):
        return None
    if batch != 1:
        raise ConfigError(
            f"DiffTransformer: packed documents need a batch of 1 under 'diffattn', got {batch}."
        )
    borders = [0, *(starts[:, 1] + 1).tolist(), position_ids.shape[1]]
    return torch.tensor(borders, dtype=torch.int32, device=position_ids.device)


def _update(cache: Cache, k: Tensor, v: Tensor, layer_idx: int) -> tuple[Tensor, Tensor]:
    """Append to the cache and read all of it; the keys of both maps lie in one head."""
    num_maps = k.shape[3] if k.ndim == 5 else None
    k = k.flatten(3).transpose(1, 2)  # [B, Hkv, T, 2D or D]
    k, v = cache.update(k, v.transpose(1, 2), layer_idx)
    k, v = k.transpose(1, 2), v.transpose(1, 2)
    return (k if num_maps is None else k.unflatten(-1, (num_maps, -1))), v


def _record(
    recorder: AttentionMapRecorder,
    layer: Any,
    q: Tensor,
    k: Tensor,
    lam: Tensor | None,
    options: dict[str, Any],
) -> None:
    if lam is None:
        signed = softmax_attention_maps(q, k, **options)
        recorder(signed, signed[:, :, None])
    else:
        map_1, map_2, signed = diff_attention_maps(q, k, lam, **options)
        if layer.config.attention.map_norm:
            signed = layer.acting_map(signed)
        recorder(signed, torch.stack([map_1, map_2], dim=2))


def _hugging_face(
    layer: Any,
    config: DiffTransformerConfig,
    mask: Any,
    recorder: AttentionMapRecorder | None,
    kwargs: dict[str, Any],
    q: Tensor,
    k: Tensor,
    v: Tensor,
    lam: Tensor | None,
) -> Tensor:
    """One call of Hugging Face's attention interface; see the table above."""
    implementation = config._attn_implementation
    if config.attention.map_norm:
        raise ConfigError(
            f"DiffTransformer: attention_type {config.attention_type!r} needs attn_implementation "
            f"{IMPLEMENTATION!r}, got {implementation!r}."
        )
    if recorder is not None and implementation != "eager":
        raise ConfigError(
            "DiffTransformer: attention maps need attn_implementation 'diffattn' or 'eager', "
            f"got {implementation!r}."
        )
    num_heads = q.shape[2]
    # Each map of V1 meets both halves of V; V2 has its two query heads side by side already.
    pieces = 2 if k.ndim == 5 else 1
    if pieces == 2:
        q, k = (torch.cat([*x.unbind(3)] * 2, dim=2) for x in (q, k))
        left, right = v.chunk(2, dim=-1)
        v = torch.cat([left, left, right, right], dim=2)
    elif lam is not None:
        q = q.flatten(2, 3)
    attention = ALL_ATTENTION_FUNCTIONS.get_interface(implementation, eager_attention_forward)
    out, weights = attention(
        layer, q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2), mask, dropout=0.0,
        scaling=layer.scaling, **kwargs,
    )  # fmt: skip
    out = out.view(*out.shape[:2], -1, config.head_dim)  # [B, T, heads of the call, D]
    if lam is None:
        if recorder is not None:
            recorder(weights, weights[:, :, None])
        return out
    lam = lam.expand(*out.shape[:2], num_heads)[..., None]
    if pieces == 2:
        out_1, out_2 = out.unflatten(2, (2, 2, num_heads)).unbind(3)  # [B, T, halves, H, D]
        out_1, out_2 = (x.transpose(2, 3).flatten(3) for x in (out_1, out_2))
    else:
        out_1, out_2 = out.unflatten(2, (num_heads, 2)).unbind(3)
    if recorder is not None:
        maps = (
            weights[:, : 2 * num_heads].unflatten(1, (2, num_heads)).transpose(1, 2)
            if pieces == 2
            else weights.unflatten(1, (num_heads, 2))
        ).to(lam.dtype)  # [B, H, 2, T, S]
        recorder(maps[:, :, 0] - lam.transpose(1, 2) * maps[:, :, 1], maps)
    return (out_1 - lam * out_2).to(q.dtype)
