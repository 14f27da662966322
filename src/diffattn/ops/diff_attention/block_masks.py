"""Which blocks of queries and keys FlexAttention has to compute."""

from typing import TYPE_CHECKING

import torch
from torch import Tensor

if TYPE_CHECKING:  # importing FlexAttention loads PyTorch's compiler, which takes a second
    from torch.nn.attention.flex_attention import BlockMask

_BLOCK = 128  # FlexAttention's own block size


# PyTorch 2.13: code generation for CPU takes queries, keys and tensors read by a mask only as
# memory of their own, and fails where it would fuse anything into FlexAttention's kernel. What
# passes through an operator that the compiler cannot look into is neither a view nor fused.
@torch.library.custom_op("diffattn::realized", mutates_args=())
def realized(x: Tensor) -> Tensor:
    """A contiguous copy of ``x``, also in compiled code."""
    return x.clone(memory_format=torch.contiguous_format)


@realized.register_fake
def _(x: Tensor) -> Tensor:
    return torch.empty_like(x, memory_format=torch.contiguous_format)


realized.register_autograd(lambda ctx, grad: grad)


def range_mask(
    first: Tensor, last: Tensor, num_keys: int, key_padding_mask: Tensor | None
) -> "BlockMask":
    """Block mask of ``first <= j < last`` and the real keys, without a mask of T × S entries."""
    from torch.nn.attention.flex_attention import BlockMask

    num_queries = first.shape[1]
    some, whole = blocks(first, last, num_keys, key_padding_mask)
    if key_padding_mask is not None:
        first = first.expand(key_padding_mask.shape[0], -1)
        last = last.expand(key_padding_mask.shape[0], -1)
    if first.device.type == "cpu" and torch.compiler.is_compiling():
        first, last = realized(first), realized(last)
    alike = first.shape[0] == 1  # every row of the batch

    def mask_mod(b: Tensor, h: Tensor, i: Tensor, j: Tensor) -> Tensor:
        row = torch.zeros_like(b) if alike else b
        seen = (j >= first[row, i]) & (j < last[row, i])
        return seen if key_padding_mask is None else seen & key_padding_mask[b, j]

    partial = some & ~whole
    return BlockMask.from_kv_blocks(
        *_ordered(partial), *_ordered(whole), BLOCK_SIZE=_BLOCK, mask_mod=mask_mod,
        seq_lengths=(num_queries, num_keys),
    )  # fmt: skip


def blocks(
    first: Tensor, last: Tensor, num_keys: int, key_padding_mask: Tensor | None
) -> tuple[Tensor, Tensor]:
    """Which blocks hold a visible pair (or might), and which hold nothing else.

    Both ends of a query's keys never fall along T, so a block's first and last row bound the rest.
    """
    num_queries = first.shape[1]
    rows = torch.arange(0, num_queries, _BLOCK, device=first.device)
    columns = torch.arange(0, num_keys, _BLOCK, device=first.device)
    ends = (rows + _BLOCK - 1).clamp(max=num_queries - 1)
    some = (first[:, rows, None] < columns + _BLOCK) & (last[:, ends, None] > columns)
    # A block that reaches over the edge is never whole: last is at most S.
    whole = (first[:, ends, None] <= columns) & (last[:, rows, None] >= columns + _BLOCK)
    whole = whole & (rows[:, None] + _BLOCK <= num_queries)
    if key_padding_mask is not None:
        missing = len(columns) * _BLOCK - num_keys
        real = torch.nn.functional.pad(key_padding_mask, (0, missing)).unflatten(1, (-1, _BLOCK))
        some = some & real.any(-1)[:, None]
        whole = whole & real.all(-1)[:, None]
    return some[:, None], (whole & some)[:, None]  # [B or 1, 1, blocks of T, blocks of S]


def _ordered(blocks: Tensor) -> tuple[Tensor, Tensor]:
    """How many blocks of keys each block of queries has, and their indices, those first."""
    indices = blocks.int().argsort(dim=-1, descending=True, stable=True)
    return blocks.sum(-1, dtype=torch.int32), indices.to(torch.int32).contiguous()
