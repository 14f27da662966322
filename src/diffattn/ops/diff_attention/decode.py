"""One or a few queries against a long cache: K1, K2 and V are read once, where they lie.

With so few queries the time is that of reading the cache, and softmax attention of twice the heads
reads as much. So keys and values are neither copied nor repeated: the query heads that share a
key/value head, and the queries of one call, become the rows of one product.
"""

import torch
from torch import Tensor

from diffattn.ops.masking import masked_softmax, visible_keys


def forward(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    lam: Tensor,
    *,
    scale: float,
    causal: bool = True,
    window: int | None = None,
    key_padding_mask: Tensor | None = None,
    kv_lengths: Tensor | None = None,
    cu_seqlens: Tensor | None = None,
) -> Tensor:
    r"""Differential attention of few queries, by one product with K per map and one with V.

    Source: arXiv:2410.05258v2, Eq. (1).

    Args:
        q: ``[B, T, H, 2, D]``.
        k: ``[B, S, Hkv, 2, D]`` or ``[B, S, Hkv, D]``, for example a view of a cache.
        v: ``[B, S, Hkv, Dv]``, likewise.
        lam: λ, broadcastable to ``[B, T, H]``.
        scale: s.
        causal: See :func:`diffattn.diff_attention`, likewise the other options.
        window: In tokens.
        key_padding_mask: bool ``[B, S]``.
        kv_lengths: int32 ``[B]``.
        cu_seqlens: int32 ``[num_docs + 1]``.

    Returns:
        ``[B, T, H, Dv]``, dtype of ``q``. A query that sees no key gets 0.
    """
    batch, num_queries, num_heads, _, _ = q.shape
    num_keys, num_kv_heads = k.shape[1:3]
    visible = visible_keys(
        num_queries, num_keys, device=q.device, causal=causal, window=window,
        key_padding_mask=key_padding_mask, kv_lengths=kv_lengths, cu_seqlens=cu_seqlens,
    )  # fmt: skip
    # Rows: query heads that share a key/value head, then positions.
    q = (q * scale).unflatten(2, (num_kv_heads, -1)).permute(0, 2, 4, 3, 1, 5)
    scores = _scores(q.flatten(3, 4), k.transpose(1, 2))  # [B, Hkv, 2, R, S]
    scores = scores.unflatten(3, (-1, num_queries))  # [B, Hkv, 2, repeat, T, S]
    weights = masked_softmax(scores, None if visible is None else visible[:, None, None, None])
    lam = lam.expand(batch, num_queries, num_heads).unflatten(2, (num_kv_heads, -1))
    map_1, map_2 = weights.unbind(2)
    signed = (map_1 - lam.permute(0, 2, 3, 1)[..., None] * map_2).flatten(2, 3)  # [B, Hkv, R, S]
    out = _product(signed.to(v.dtype), v.transpose(1, 2))  # [B, Hkv, R, Dv]
    out = out.unflatten(2, (-1, num_queries)).permute(0, 3, 1, 2, 4).flatten(2, 3)
    return out.to(q.dtype)


def _scores(q: Tensor, k: Tensor) -> Tensor:
    """q ``[B, Hkv, 2, R, D]`` against k ``[B, Hkv, S, 2, D]`` or ``[B, Hkv, S, D]``."""
    num_rows, head_dim = q.shape[3:]
    if k.ndim == 4:  # shared keys: the maps are rows of one product
        return _product(q.flatten(2, 3), k.mT).unflatten(2, (2, num_rows))
    if q.dtype in (torch.bfloat16, torch.float16) and k.stride(-2) == head_dim:
        # [q1 | 0] and [0 | q2] against [k1 | k2]: oneDNN is five times slower on half a row.
        q_1, q_2 = q.unbind(2)
        pad = torch.nn.functional.pad
        rows = torch.cat([pad(q_1, (0, head_dim)), pad(q_2, (head_dim, 0))], dim=2)
        return _product(rows, k.flatten(3).mT).unflatten(2, (2, num_rows))
    return torch.stack([_product(q[:, :, m], k[:, :, :, m].mT) for m in (0, 1)], dim=2)


def _product(a: Tensor, b: Tensor) -> Tensor:
    """``a @ b`` of ``[B, Hkv, n, m]`` and ``[B, Hkv, m, p]`` without a copy of ``b``."""
    # matmul copies operands whose batch axes are not one stride apart, as in [B, S, Hkv, ...].
    if b.shape[0] == 1 or b.stride(0) == b.shape[1] * b.stride(1):
        return torch.matmul(a, b)
    return torch.stack([torch.matmul(own_a, own_b) for own_a, own_b in zip(a, b, strict=True)])
