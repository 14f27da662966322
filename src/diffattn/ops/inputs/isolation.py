"""Call a backend without autocast, and keep NaN and infinity at hidden keys out of its result."""

import math
from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import pad

from diffattn.ops.inputs.masking import AttentionMask, paired


def in_own_dtype(device: torch.device) -> Any:
    """A context without autocast: a call computes in the dtype of its inputs."""
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
    """``attend(q, k, v, *lam)``, in which NaN and infinity reach only the queries that see them.

    A weight of 0 does not stop them: 0 · NaN is NaN. In eager code on a CPU the call is repeated
    if its output is not finite: with zeros in place of all non-finite inputs. Then the outputs of
    queries that see a non-finite input are set to NaN. Elsewhere this is done at once, and only for
    ``cu_seqlens`` and backends that are not opaque. With ``causal`` alone nothing is done.
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
        affected = _nonfinite_seen(q, k, v, mask)
        q, k, v = (x.masked_fill(~x.isfinite(), 0.0) for x in (q, k, v))
        return attend(q, k, v, *lam).masked_fill(affected, torch.nan)


def _is_finite(out: Tensor) -> bool:
    try:
        wide = torch.promote_types(out.dtype, torch.float32)
        return math.isfinite(out.detach().sum(dtype=wide).item())
    except RuntimeError:  # under vmap and while tracing a tensor has no value to read
        return True


def _nonfinite_seen(q: Tensor, k: Tensor, v: Tensor, mask: AttentionMask) -> Tensor:
    """bool ``[B, T, H, Dv]``: True if the query, a key or a value that it sees is not finite."""
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
