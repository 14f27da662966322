"""What every launcher does before its kernel: masks as intervals, layouts, padded widths."""

from dataclasses import dataclass

import torch
import triton
from torch import Tensor

from diffattn.ops.diff_attention.triton import interpreter
from diffattn.ops.diff_attention.triton.configs import interpreted
from diffattn.ops.masking import AttentionMask, query_ranges

LOG2_E = 1.4426950408889634
"""exp(x) = exp2(x · log2 e), and GPUs have an instruction for exp2 alone."""


@dataclass(frozen=True, kw_only=True, slots=True)
class KeyMask:
    """Which keys a query sees, as the kernels read it."""

    causal: bool
    """Without intervals: the kernel works out the diagonal by itself."""
    first: Tensor | None = None
    """int32 ``[B or 1, T]``: query i sees keys ``first <= j < last``."""
    last: Tensor | None = None
    begin: Tensor | None = None
    """int32 ``[B or 1, S]``: key j is seen by queries ``begin <= i < end`` at most."""
    end: Tensor | None = None
    padding: Tensor | None = None
    """uint8 ``[B, S]``, 0 where a key is padding."""

    @property
    def flags(self) -> dict[str, bool]:
        """The compile-time switches of every kernel."""
        return {
            "CAUSAL": self.causal,
            "RANGES": self.first is not None,
            "PADDING": self.padding is not None,
        }

    @property
    def batch_stride(self) -> int:
        """From one batch row of ``first`` and ``last`` to the next; 0 if all rows share them."""
        return _batch_stride(self.first)

    @property
    def key_batch_stride(self) -> int:
        """Likewise for ``begin`` and ``end``."""
        return _batch_stride(self.begin)


def key_mask(q: Tensor, k: Tensor, mask: AttentionMask, *, gradient: bool = False) -> KeyMask:
    """Turn the options of ``diff_attention`` into what the kernels read.

    Source: :meth:`diffattn.ops.masking.AttentionMask.key_ranges`.

    Args:
        q: ``[B, T, ...]``; its length and device count.
        k: ``[B, S, ...]``; its length counts.
        mask: The options of the call.
        gradient: Also find the queries that see a key, which the backward kernels need.

    Returns:
        The mask.
    """
    num_queries, num_keys = q.shape[1], k.shape[1]
    padding = None
    if mask.key_padding_mask is not None:
        padding = mask.key_padding_mask.contiguous().view(torch.uint8)
    if mask.window is None and mask.kv_lengths is None and mask.cu_seqlens is None:
        return KeyMask(causal=mask.causal, padding=padding)
    first, last = mask.key_ranges(num_queries, num_keys, device=q.device)
    begin = end = None
    if gradient:
        begin, end = query_ranges(first, last, num_keys)
    return KeyMask(causal=False, first=first, last=last, begin=begin, end=end, padding=padding)


def dense_rows(x: Tensor) -> Tensor:
    """``x`` with neighbouring channels next to each other: the one stride that kernels assume."""
    return x if x.stride(-1) == 1 else x.contiguous()


def block_width(width: int) -> int:
    """The power of two that holds ``width`` channels; 16 is the least a matrix product takes."""
    return max(16, triton.next_power_of_2(width))


def _batch_stride(x: Tensor | None) -> int:
    return 0 if x is None or x.shape[0] == 1 else x.stride(0)


if interpreted():
    interpreter.repair()
