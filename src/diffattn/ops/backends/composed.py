"""PyTorch's softmax attention with our masks, and differential attention composed of its calls."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext

import torch
from torch import Tensor
from torch.nn import functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel

from diffattn.ops.inputs import kernel_support
from diffattn.ops.inputs.masking import CAUSAL, AttentionMask


def attend(
    q: Tensor, k: Tensor, v: Tensor, *, scale: float, mask: AttentionMask = CAUSAL
) -> Tensor:
    """Softmax attention on ``scaled_dot_product_attention``; inputs are valid.

    Source: arXiv:1706.03762, Eq. (1).

    Arguments and result as in :func:`diffattn.ops.softmax_attention.softmax_attention`.
    """
    if scale <= 0:  # PyTorch's CPU kernel scales after it masks: a hidden key's -inf becomes inf
        q, scale = (-q, -scale) if scale < 0 else (q * 0.0, 1.0)
    num_queries, num_keys = q.shape[1], k.shape[1]
    # Flash kernels know no mask but this one; all others are passed as a tensor.
    # bool(): a comparison of traced lengths is symbolic, and the kernel needs a plain bool.
    is_causal = bool(
        mask.causal and num_queries == num_keys and num_queries > 1 and mask.at_most_causal
    )
    visible = None if is_causal else mask.visible_keys(num_queries, num_keys, device=q.device)
    sees_none = None
    if visible is not None:
        visible = visible[:, None]  # [B or 1, 1, T, S]
        # Kernels return 0 or NaN for a query without visible keys: let it see all, then set it 0.
        sees_none = ~visible.any(-1, keepdim=True)
        visible = visible | sees_none
    # On an H100 and an H200 cuDNN's kernel was 1.5 to 2 times as fast as PyTorch's choice. Not in
    # compiled code, which cannot read which kernels the user allows.
    half = q.dtype in (torch.float16, torch.bfloat16) and not torch.compiler.is_compiling()
    capability = kernel_support.compute_capability(q.device) if is_causal and half else None
    with cudnn_first() if capability == kernel_support.HOPPER_CAPABILITY else nullcontext():
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


@contextmanager
def cudnn_first() -> Iterator[None]:
    """A context in which PyTorch tries the kernels that the user allows, cuDNN's first."""
    allowed = torch.backends.cuda
    order = {
        SDPBackend.CUDNN_ATTENTION: allowed.cudnn_sdp_enabled(),
        SDPBackend.FLASH_ATTENTION: allowed.flash_sdp_enabled(),
        SDPBackend.EFFICIENT_ATTENTION: allowed.mem_efficient_sdp_enabled(),
        SDPBackend.MATH: allowed.math_sdp_enabled(),
    }
    # PyTorch's own context changes the global order of kernels and does not restore it.
    before = torch._C._get_sdp_priority_order()
    try:
        with sdpa_kernel([kernel for kernel, on in order.items() if on], set_priority=True):
            yield
    finally:
        torch._C._set_sdp_priority_order(before)


# Each form computes O1 = A1 V and O2 = A2 V by scaled_dot_product_attention and subtracts them.
# That is two products with V; a fused kernel needs one. See docs/reference/numerics.md.


def flash_diff_attn_1(
    q: Tensor, k: Tensor, v: Tensor, lam: Tensor, *, scale: float, mask: AttentionMask = CAUSAL
) -> Tensor:
    r"""Two attention calls whose values are as wide as V: O = attend₁(V) − λ attend₂(V).

    On CPU the flash kernel refuses ``Dv != D`` and PyTorch materialises the maps.

    Source: arXiv:2410.05258v2, Appendix A, FlashDiffAttn_1.
    """
    return two_calls(attend, q, k, v, lam, scale=scale, mask=mask)


def two_calls(
    attend: Callable[..., Tensor],
    q: Tensor,
    k: Tensor,
    v: Tensor,
    lam: Tensor,
    *,
    scale: float,
    mask: AttentionMask = CAUSAL,
) -> Tensor:
    r"""Call ``attend``, a softmax attention, for the added maps and then for the subtracted maps.

    .. math:: O_{g,r} = \mathrm{softmax}(s Q_{g,r} K_1^\top) V -
              \lambda\,\mathrm{softmax}(s Q_{g,R+1} K_2^\top) V

    In groups ``[B, T, G, R + 1, D]`` the subtracted output is computed once for R added maps.

    Source: arXiv:2510.06949v1, Grouped Differential Attention.
    """
    maps = _split_maps(q, k)
    out_1, out_2 = (attend(q_i, k_i, v, scale=scale, mask=mask) for q_i, k_i in maps)
    return _subtract(out_1, out_2, lam, q.dtype)


def flash_diff_attn_2(
    q: Tensor, k: Tensor, v: Tensor, lam: Tensor, *, scale: float, mask: AttentionMask = CAUSAL
) -> Tensor:
    r"""Four calls of equal widths: each map attends to the left and to the right half of V.

    For kernels that need ``Dv == D``; V has width 2D and is split.

    Source: arXiv:2410.05258v2, Appendix A, FlashDiffAttn_2.
    """
    halves = v.chunk(2, dim=-1)
    out_1, out_2 = (
        torch.cat([attend(q_i, k_i, half, scale=scale, mask=mask) for half in halves], dim=-1)
        for q_i, k_i in _split_maps(q, k)
    )
    return _subtract(out_1, out_2, lam, q.dtype)


def one_call(
    q: Tensor, k: Tensor, v: Tensor, lam: Tensor, *, scale: float, mask: AttentionMask = CAUSAL
) -> Tensor:
    r"""One call for all maps: the keys of both maps are concatenated, and each query is padded.

    With ``K = [k1 | k2]`` of width 2D, the query ``[q1 | 0]`` gives the exact scores of map 1 and
    ``[0 | q2]`` those of map 2. Only queries are copied. Keys and values have equal widths when
    ``Dv = 2D``, so flash kernels can run. Shared keys (V2) need no zeros.

    Source: arXiv:2410.05258v2, Eq. (1), with both maps in one call.
    """
    head_dim = q.shape[-1]
    if k.ndim == 5:
        added, subtracted = q[:, :, :, :-1], q[:, :, :, -1:]
        q = torch.cat([F.pad(added, (0, head_dim)), F.pad(subtracted, (head_dim, 0))], dim=3)
        k = k.flatten(3)  # [B, S, Hkv, 2D]
    # The maps of a head or group are neighbours, so each still reads its own key/value head.
    out = attend(q.flatten(2, 3), k, v, scale=scale, mask=mask)  # [B, T, G (R + 1), Dv]
    out = out.unflatten(2, q.shape[2:4])
    return _subtract(out[:, :, :, :-1].flatten(2, 3), out[:, :, :, -1], lam, q.dtype)


def _split_maps(q: Tensor, k: Tensor) -> tuple[tuple[Tensor, Tensor], tuple[Tensor, Tensor]]:
    """(Q1, K1) and (Q2, K2), each ``[B, T, heads, D]``; groups have R heads of Q1, one of Q2."""
    k_1, k_2 = (k, k) if k.ndim == 4 else k.unbind(3)
    return (q[:, :, :, :-1].flatten(2, 3), k_1), (q[:, :, :, -1], k_2)


def _subtract(out_1: Tensor, out_2: Tensor, lam: Tensor, dtype: torch.dtype) -> Tensor:
    """O1 − λ O2 with λ in its own, wider dtype; R heads of O1 share one of O2."""
    groups = (out_2.shape[2], -1)
    lam = lam.expand(out_1.shape[:3]).unflatten(2, groups)[..., None]
    out = out_1.unflatten(2, groups) - lam * out_2[:, :, :, None]
    return out.flatten(2, 3).to(dtype)
