"""Steps of every launcher before its kernel: masks as intervals, layouts, padded widths."""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import pad

from diffattn.ops.inputs.masking import AttentionMask, query_ranges
from diffattn.ops.triton import interpreter
from diffattn.ops.triton.configs import (
    GRADIENTS,
    LaunchConfig,
    interpreted,
    num_multiprocessors,
)

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
    """uint8 ``[B, S]``, 0 where a key is padding. Comes with intervals, which end at real keys."""
    before: Tensor | None = None
    """int32 ``[B, S + 1]``, real keys before a key: whether a run of keys has no padding."""

    @property
    def of_queries(self) -> tuple[Tensor | None, ...]:
        """The pointers of a kernel that goes over the keys."""
        return self.first, self.last, self.padding, self.before

    @property
    def of_keys(self) -> tuple[Tensor | None, ...]:
        """The pointers of a kernel that goes over the queries."""
        return self.first, self.last, self.begin, self.end, self.padding, self.before

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

    Source: :meth:`diffattn.ops.inputs.masking.AttentionMask.key_ranges`.

    Args:
        q: ``[B, T, ...]``; its length and device count.
        k: ``[B, S, ...]``; its length counts.
        mask: The options of the call.
        gradient: Also find the queries that see a key, which the backward kernels need.

    Returns:
        The mask.
    """
    if mask.at_most_causal:
        return KeyMask(causal=mask.causal)
    num_queries, num_keys = q.shape[1], k.shape[1]
    first, last = mask.key_ranges(num_queries, num_keys, device=q.device)
    padding = before = None
    if mask.key_padding_mask is not None:
        padding = mask.key_padding_mask.contiguous().view(torch.uint8)
        before = pad(padding.cumsum(1, dtype=torch.int32), (1, 0))  # [B, S + 1]
        # Nobody waits for the device: padding at the ends shortens the intervals there, which
        # leaves full tiles unmasked, and what lies between is looked at tile by tile.
        first_real = (before[:, 1:] == 0).sum(1, keepdim=True, dtype=torch.int32)
        num_until_last = (before < before[:, -1:]).sum(1, keepdim=True, dtype=torch.int32)
        first, last = torch.maximum(first, first_real), torch.minimum(last, num_until_last)
    begin = end = None
    if gradient:
        begin, end = query_ranges(first, last, num_keys)
    return KeyMask(
        causal=False, first=first, last=last, begin=begin, end=end, padding=padding, before=before
    )


def dense_rows(x: Tensor) -> Tensor:
    """``x`` with neighbouring channels next to each other: the one stride that kernels assume."""
    return x if x.stride(-1) == 1 else x.contiguous()


def strides_of(q: Tensor, k: Tensor, v: Tensor, lam: Tensor | None) -> tuple[int, ...]:
    """Strides of the axes before the channels, in the kernels' order; 0 for a missing axis."""
    of_maps = k.stride(3) if k.ndim == 5 else 0
    of_lambda = (0, 0, 0) if lam is None else lam.stride()
    return (*q.stride()[:4], *k.stride()[:3], of_maps, *v.stride()[:3], *of_lambda)


def num_blocks(length: int, block: int) -> int:
    """Blocks that hold ``length`` rows. ``triton.cdiv`` takes the host twenty times as long."""
    return -(-length // block)


def block_width(width: int) -> int:
    """The power of two that holds ``width`` channels; 16 is the least a matrix product takes."""
    return max(16, 1 << (width - 1).bit_length())


def group_splits(group: int, num_programs: int, device: torch.device) -> int:
    """Into how many parts the query heads of a key/value head are split for dK and dV.

    As few as give every multiprocessor a program, one head in a part at most: with few key/value
    heads and few keys, the blocks of keys alone leave a GPU idle.

    Args:
        group: Query heads per key/value head.
        num_programs: Programs of a launch without parts.
        device: Where the kernels run.

    Returns:
        A divisor of ``group``.
    """
    wanted = num_multiprocessors(device)
    divisors = (n for n in range(1, group) if group % n == 0)
    return next((n for n in divisors if n * num_programs >= wanted), group)


def gradients_by_keys(
    start: Callable[..., None], configs: dict[str, LaunchConfig], q: Tensor, k: Tensor, v: Tensor
) -> dict[str, Tensor]:
    """Run the launches that go by keys, and put together what their programs leave in parts.

    Args:
        start: Called as ``start(grid, targets, splits, options)``, the targets by name: ``"DK"``
            and ``"DV"`` ``[splits, ...]``, ``"DQ"`` float32 zeros in the shape of ``q``.
        configs: Of :func:`diffattn.ops.triton.configs.backward_configs`.
        q: ``[B, T, H, ...]``.
        k: ``[B, S, Hkv, ...]``.
        v: ``[B, S, Hkv, Dv]``.

    Returns:
        The gradients that the launches compute, by name: dK and dV in the dtype of ``k``, the
        parts summed in one order; dQ in float32, without the factor s.
    """
    batch, num_keys, num_kv_heads = v.shape[:3]
    gradients = {}
    for launch, config in configs.items():
        wanted = GRADIENTS.get(launch, ())
        if not wanted:
            continue
        blocks = num_blocks(num_keys, config.block_n)
        num_programs = blocks * num_kv_heads * batch
        splits = group_splits(q.shape[2] // num_kv_heads, num_programs, q.device)
        dtype = k.dtype if splits == 1 else torch.float32
        targets = {
            name: torch.empty(splits, *x.shape, dtype=dtype, device=x.device)
            for name, x in (("DK", k), ("DV", v))
            if name in wanted
        }
        if "DQ" in wanted:
            targets["DQ"] = torch.zeros(q.shape, dtype=torch.float32, device=q.device)
        grid = (blocks, num_kv_heads * splits, batch)
        start(grid, targets, splits, config.options)
        if "DQ" in wanted:
            gradients["DQ"] = targets.pop("DQ")
        for name, parts in targets.items():
            gradients[name] = parts[0] if splits == 1 else parts.sum(0).to(k.dtype)
    return gradients


def widths(head_dim: int, value_dim: int) -> dict[str, int]:
    """Widths of queries, values and their tiles, as compile-time constants."""
    return {
        "HEAD_DIM": head_dim,
        "VALUE_DIM": value_dim,
        "BLOCK_D": block_width(head_dim),
        "BLOCK_DV": block_width(value_dim),
    }


def _batch_stride(x: Tensor | None) -> int:
    return 0 if x is None or x.shape[0] == 1 else x.stride(0)


if interpreted():
    interpreter.repair()
