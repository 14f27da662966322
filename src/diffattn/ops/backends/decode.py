"""One or a few queries against a long cache: K1, K2 and V are read once and in place.

The time is that of reading the cache, so keys and values are neither copied nor repeated, except
that float16 keys become float32. All queries and query heads that read one key/value head become
the rows of one matrix product.
"""

from typing import Any

import torch
from torch import Tensor

from diffattn.ops.inputs.masking import CAUSAL, AttentionMask, in_range, masked_softmax
from diffattn.ops.inputs.operators import transformed


def forward(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    lam: Tensor | None,
    *,
    scale: float,
    mask: AttentionMask = CAUSAL,
) -> Tensor:
    """Differential attention of few queries: one product with K per map, one product with V.

    Arguments and result as in :func:`diffattn.ops.backends.reference.forward`; keys and
    values may be views of a cache. Without λ there is one map.

    Source: arXiv:2410.05258v2, Eq. (1).
    """
    batch, num_queries, num_heads = q.shape[:3]
    num_kv_heads = k.shape[2]
    visible = mask.visible_keys(num_queries, k.shape[1], device=q.device)
    # Rows: query heads that share a key/value head, then positions.
    q, k = in_range(q), in_range(k)
    q = (q * scale).unflatten(2, (num_kv_heads, -1)).permute(0, 2, 4, 3, 1, 5)
    scores = _scores(q.flatten(3, 4), k.transpose(1, 2))  # [B, Hkv, maps, R, S]
    scores = scores.unflatten(3, (-1, num_queries))  # [B, Hkv, maps, repeat, T, S]
    maps = masked_softmax(scores, None if visible is None else visible[:, None, None, None])
    signed = maps[:, :, 0]
    if lam is not None:
        lam = lam.expand(batch, num_queries, num_heads).unflatten(2, (num_kv_heads, -1))
        signed = signed - lam.permute(0, 2, 3, 1)[..., None] * maps[:, :, 1]
    out = _weighted_values(signed.flatten(2, 3).to(v.dtype), v.transpose(1, 2))  # [B, Hkv, R, Dv]
    return out.unflatten(2, (-1, num_queries)).permute(0, 3, 1, 2, 4).flatten(2, 3).to(v.dtype)


def softmax_attention(q: Tensor, k: Tensor, v: Tensor, **options: Any) -> Tensor:
    """:func:`diffattn.ops.softmax_attention.softmax_attention` of few queries, the same way.

    Source: arXiv:1706.03762, Eq. (1).
    """
    return forward(q[:, :, :, None], k, v, None, **options)


def _scores(q: Tensor, k: Tensor) -> Tensor:
    """q ``[B, Hkv, maps, R, D]`` against k ``[B, Hkv, S, 2, D]`` or ``[B, Hkv, S, D]``."""
    num_rows = q.shape[3]
    if k.ndim == 4:  # shared keys: the maps are rows of one product
        return _product(q.flatten(2, 3), k.mT).unflatten(2, (-1, num_rows))
    if k.stride(2) == 2 * k.stride(3):
        # Multiply both queries by both keys and drop half: cheaper than reading every second row.
        pairs = _product(q.flatten(2, 3), k.flatten(2, 3).mT)  # [B, Hkv, 2 R, 2 S]
        pairs = pairs.unflatten(3, (-1, 2)).unflatten(2, (2, num_rows))
        if torch.compiler.is_compiling():  # Inductor's own diagonal warns that it is deprecated
            return torch.stack([pairs[:, :, m, ..., m] for m in (0, 1)], dim=2)
        return pairs.diagonal(dim1=2, dim2=5).movedim(-1, 2)
    return torch.stack([_product(q[:, :, m], k[:, :, :, m].mT) for m in (0, 1)], dim=2)


def _weighted_values(weights: Tensor, v: Tensor) -> Tensor:
    """weights ``[B, Hkv, R, S]`` times v ``[B, Hkv, S, Dv]``."""
    differentiated = weights.requires_grad or v.requires_grad or transformed(weights, v)
    plain = not (torch.compiler.is_compiling() or differentiated)
    one_row = weights.shape[2] == 1 and v.is_contiguous()
    if plain and one_row and v.dtype == torch.float32 and v.device.type == "cpu":
        # The result is a weighted sum of V's rows. ``embedding_bag`` computes it at the speed of
        # memory; MKL's matrix-vector product reaches half of that or less on AMD.
        num_keys = v.shape[2]
        rows = torch.arange(v.shape[:3].numel(), dtype=torch.int32)
        out = torch.nn.functional.embedding_bag(
            rows,
            v.flatten(0, 2),
            rows[::num_keys],
            mode="sum",
            per_sample_weights=weights.flatten(),
        )
        return out.view(*weights.shape[:3], -1)
    return _product(weights, v)


def _product(a: Tensor, b: Tensor) -> Tensor:
    """``a @ b`` of ``[B, Hkv, n, m]`` and ``[B, Hkv, m, p]`` without a copy of ``b``."""
    # matmul copies operands whose batch axes cannot be merged, as in a cache [B, S, Hkv, ...].
    if b.shape[0] == 1 or b.stride(0) == b.shape[1] * b.stride(1):
        return torch.matmul(a, b)
    return torch.stack([torch.matmul(row_a, row_b) for row_a, row_b in zip(a, b, strict=True)])
