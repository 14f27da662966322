"""The eager definition. Every other backend is measured against this file."""

import torch
from torch import Tensor

from diffattn.ops.inputs.masking import (
    CAUSAL,
    AttentionMask,
    in_range,
    masked_softmax,
    num_heads_of,
    paired,
    repeat_heads,
)


def forward(
    q: Tensor, k: Tensor, v: Tensor, lam: Tensor, *, scale: float, mask: AttentionMask = CAUSAL
) -> Tensor:
    r"""Differential attention, written as the paper writes it.

    .. math:: O = (\mathrm{softmax}(s Q_1 K_1^\top) - \lambda\,\mathrm{softmax}(s Q_2 K_2^\top)) V

    Matrix products run in the input dtype, but float16 queries times keys in float32. Softmaxes and
    λ are float32 (float64 for float64). Every backend takes these arguments, already checked, and
    returns this result.

    Source: arXiv:2410.05258v2, Eq. (1).

    Args:
        q: ``[B, T, H, 2, D]``, or ``[B, T, G, R + 1, D]`` with H = G R.
        k: ``[B, S, Hkv, 2, D]`` or ``[B, S, Hkv, D]``.
        v: ``[B, S, Hkv, Dv]``.
        lam: λ, broadcastable to ``[B, T, H]``.
        scale: s, dimensionless.
        mask: Which keys a query sees. Default: causal.

    Returns:
        ``[B, T, H, Dv]``, dtype of ``q``. A query that sees no key gets 0.
    """
    _, _, signed = maps(q, k, lam, scale=scale, mask=mask)
    v = repeat_heads(v, num_heads_of(q)).transpose(1, 2)  # [B, H, S, Dv]
    return torch.matmul(signed.to(v.dtype), v).transpose(1, 2).to(q.dtype)


def maps(
    q: Tensor,
    k: Tensor,
    lam: Tensor,
    *,
    scale: float,
    mask: AttentionMask = CAUSAL,
    rows: Tensor | None = None,
) -> tuple[Tensor, Tensor, Tensor]:
    r"""The two attention maps and their signed difference :math:`A_1 - \lambda A_2`.

    Source: arXiv:2410.05258v2, Eq. (1).

    Arguments are those of :func:`forward`, and ``rows``, int64 ``[R]``, the positions of the
    queries to compute. Default: all T.

    Returns:
        A1, A2 and A1 − λA2, each ``[B, H, T or R, S]``, float32 (float64 for float64 ``q``).
    """
    q = paired(q)
    lam = lam.expand(q.shape[:3])  # [B, T, H]
    if rows is not None:
        lam = lam[:, rows]
    if k.ndim == 4:
        k = k[:, :, :, None]  # both maps share keys: [B, S, Hkv, 1, D]
    map_1, map_2 = softmax_maps(q, k, scale=scale, mask=mask, rows=rows).unbind(2)
    return map_1, map_2, map_1 - lam.transpose(1, 2)[..., None] * map_2


def softmax_maps(
    q: Tensor, k: Tensor, *, scale: float, mask: AttentionMask, rows: Tensor | None = None
) -> Tensor:
    """Softmax maps ``[B, H, maps, T or R, S]``; queries and keys have an axis of maps."""
    visible = mask.visible_keys(q.shape[1], k.shape[1], device=q.device, rows=rows)
    if rows is not None:
        q = q[:, rows]
    q, k = in_range(q), in_range(repeat_heads(k, q.shape[2]))
    logits = torch.matmul((q * scale).permute(0, 2, 3, 1, 4), k.permute(0, 2, 3, 4, 1))
    return masked_softmax(logits, None if visible is None else visible[:, None, None])


def softmax_attention(
    q: Tensor, k: Tensor, v: Tensor, *, scale: float, mask: AttentionMask = CAUSAL
) -> Tensor:
    """:func:`diffattn.softmax_attention` by its formula, with the whole map in memory.

    Source: arXiv:1706.03762, Eq. (1).
    """
    weights = softmax_maps(q[:, :, :, None], k[:, :, :, None], scale=scale, mask=mask)[:, :, 0]
    v = repeat_heads(v, q.shape[2]).transpose(1, 2)  # [B, H, S, Dv]
    return torch.matmul(weights.to(v.dtype), v).transpose(1, 2).to(q.dtype)
