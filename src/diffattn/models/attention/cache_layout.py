"""Layout of keys and values in a dynamic or static cache."""

import torch
from torch import Tensor
from transformers.cache_utils import Cache


def update(cache: Cache, k: Tensor, v: Tensor, layer_idx: int) -> tuple[Tensor, Tensor]:
    """Append keys ``[B, T, Hkv, (maps,) D]`` and values ``[B, T, Hkv, Dv]``; return all of them.

    The keys of both maps are stored as one head, ``[B, Hkv, S, 2D]``, as wide as a value, and
    returned as views. An exporter or a learned prefix makes a cache by ``num_key_value_heads``, in
    the layout of :func:`in_kernel_layout`. A static cache keeps this layout, at twice the memory; a
    dynamic one is made compact. In it a layer with one key per head repeats its heads.
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
