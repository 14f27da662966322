"""PyTorch's own attention call with our masks: a baseline, and what composed forms are made of."""

from torch import Tensor
from torch.nn import functional as F

from diffattn.ops.inputs.masking import CAUSAL, AttentionMask


def attend(
    q: Tensor, k: Tensor, v: Tensor, *, scale: float, mask: AttentionMask = CAUSAL
) -> Tensor:
    r"""Softmax attention on ``scaled_dot_product_attention``; inputs are valid.

    .. math:: O = \mathrm{softmax}(s Q K^\top) V

    Source: arXiv:1706.03762, Eq. (1).

    Args:
        q: ``[B, T, H, D]``.
        k: ``[B, S, Hkv, D]``.
        v: ``[B, S, Hkv, Dv]``.
        scale: s.
        mask: Which keys a query sees.

    Returns:
        ``[B, T, H, Dv]``, dtype of ``q``. A query that sees no key gets 0.
    """
    if scale <= 0:  # PyTorch's CPU kernel scales after it masks: a hidden key's -inf becomes inf
        q, scale = (-q, -scale) if scale < 0 else (q * 0.0, 1.0)
    num_queries, num_keys = q.shape[1], k.shape[1]
    # Only this form is known to the flash kernels; every other mask is passed as a tensor.
    # A comparison of traced lengths is symbolic; the kernel takes a plain bool.
    is_causal = bool(
        mask.causal and num_queries == num_keys and num_queries > 1 and mask.at_most_causal
    )
    visible = sees_none = None
    if not is_causal:
        visible = mask.visible_keys(num_queries, num_keys, device=q.device)
    if visible is not None:
        visible = visible[:, None]  # [B or 1, 1, T, S]
        # Kernels differ in a row without keys (0 or NaN): let it see all, then clear it.
        sees_none = ~visible.any(-1, keepdim=True)
        visible = visible | sees_none
    out = F.scaled_dot_product_attention(
        q.transpose(1, 2),
        k.transpose(1, 2),
        v.transpose(1, 2),
        attn_mask=visible,
        is_causal=is_causal,
        scale=scale,
        enable_gqa=bool(q.shape[2] != k.shape[2]),
    )
    if sees_none is not None:
        out = out.masked_fill(sees_none, 0.0)
    return out.transpose(1, 2).to(q.dtype)
