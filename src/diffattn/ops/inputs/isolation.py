"""One call of a backend: in the dtype of its inputs, and with hidden keys that hold anything."""

import math
from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import pad

from diffattn.ops.inputs.masking import AttentionMask, paired


def in_own_dtype(device: torch.device) -> Any:
    """A context in which autocast rounds nothing: float32 inputs are attended to in float32."""
    kind = device.type
    if torch.amp.is_autocast_available(kind) and torch.is_autocast_enabled(kind):
        return torch.autocast(kind, enabled=False)
    return nullcontext()


def isolated(
    attend: Callable[..., Tensor],
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *lam: Tensor,
    mask: AttentionMask,
    opaque: bool = False,
) -> Tensor:
    """``attend(q, k, v, *lam)``, where what is not finite reaches only the queries that see it.

    A weight of 0 is not enough: 0 · NaN is NaN. Where looking is free, that is on a CPU outside
    compiled code, the output tells whether the call must be done again with zeros in place of all
    that is not finite, and NaN for whom it concerns. Elsewhere documents are kept apart that way
    at once, except by the kernels of a GPU, whose tiles may hold several.

    Args:
        attend: A backend whose mask is ``mask``.
        q: ``[B, T, H, 2, D]``, ``[B, T, G, R + 1, D]`` or ``[B, T, H, D]``.
        k: ``[B, S, Hkv, 2, D]`` or ``[B, S, Hkv, D]``.
        v: ``[B, S, Hkv, Dv]``.
        *lam: λ, or nothing.
        mask: Which keys a query sees.
        opaque: Whether ``attend`` is a registered operator.

    Returns:
        ``[B, T, H, Dv]``.
    """
    with in_own_dtype(q.device):
        if mask.at_most_causal:
            return attend(q, k, v, *lam)
        if q.device.type == "cpu" and not torch.compiler.is_compiling():
            out = attend(q, k, v, *lam)
            if _is_finite(out):
                return out
        elif mask.cu_seqlens is None or (opaque and q.device.type != "cpu"):
            return attend(q, k, v, *lam)
        k, v = mask.without_unseen(q.shape[1], k, v)
        spoilt = _spoilt(q, k, v, mask)
        q, k, v = (x.masked_fill(~x.isfinite(), 0.0) for x in (q, k, v))
        return attend(q, k, v, *lam).masked_fill(spoilt, torch.nan)


def _is_finite(out: Tensor) -> bool:
    try:
        wide = torch.promote_types(out.dtype, torch.float32)
        return math.isfinite(out.detach().sum(dtype=wide).item())
    except RuntimeError:  # nothing to be seen: under vmap and while tracing
        return True


def _spoilt(q: Tensor, k: Tensor, v: Tensor, mask: AttentionMask) -> Tensor:
    """bool ``[B, T, H, Dv]``: outputs of queries that are not finite, or see what is not."""
    q = q if q.ndim == 4 else paired(q)
    num_queries, num_keys = q.shape[1], k.shape[1]
    bad_keys = ~k.isfinite().flatten(3).all(-1)[..., None]  # [B, S, Hkv, 1]
    counts = pad((bad_keys | ~v.isfinite()).cumsum(1), (0, 0, 0, 0, 1, 0))  # [B, S + 1, Hkv, Dv]
    first, last = mask.key_ranges(num_queries, num_keys, device=q.device)
    shape = (q.shape[0], num_queries, *v.shape[2:])
    until_first, until_last = (
        counts.gather(1, x.long()[..., None, None].expand(shape)) for x in (first, last)
    )
    seen = (until_last > until_first).repeat_interleave(q.shape[2] // v.shape[2], dim=2)
    return seen | ~q.isfinite().flatten(3).all(-1)[..., None]
