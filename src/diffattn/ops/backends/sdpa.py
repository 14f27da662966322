"""PyTorch's own attention call with our masks: a baseline, and the part of composed backends."""

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext

import torch
from torch import Tensor
from torch.nn import functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel

from diffattn.ops.inputs import kernel_support
from diffattn.ops.inputs.masking import CAUSAL, AttentionMask


def attend(
    q: Tensor, k: Tensor, v: Tensor, *, scale: float, mask: AttentionMask = CAUSAL
) -> Tensor:
    r"""Softmax attention on ``scaled_dot_product_attention``; inputs are valid.

    .. math:: O = \mathrm{softmax}(s Q K^\top) V

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
    visible = sees_none = None
    if not is_causal:
        visible = mask.visible_keys(num_queries, num_keys, device=q.device)
    if visible is not None:
        visible = visible[:, None]  # [B or 1, 1, T, S]
        # Kernels return 0 or NaN for a query without visible keys: let it see all, then set it 0.
        sees_none = ~visible.any(-1, keepdim=True)
        visible = visible | sees_none
    context: AbstractContextManager[None] = nullcontext()
    # On an H100 and an H200 cuDNN's kernel was 1.5 to 2 times as fast as PyTorch's choice. Not in
    # compiled code, which cannot read which kernels the user allows.
    half = q.dtype in (torch.float16, torch.bfloat16) and not torch.compiler.is_compiling()
    hopper = kernel_support.HOPPER_CAPABILITY
    if is_causal and half and kernel_support.compute_capability(q.device) == hopper:
        context = cudnn_first()
    with context:
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
