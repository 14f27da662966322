"""Steps around the Hopper backward: the numbers of each query that it reads, and its sums of dQ."""

import triton
import triton.language as tl
from torch import Tensor

from diffattn.ops.triton.launch import num_blocks, run_kernel

NUM_NUMBERS = 5
"""Per query and head: the logarithms in base 2 of both maps' row sums, D1, D2 and λ."""
CHUNK = 64
"""Queries whose numbers are stored together, so that a tile's numbers have fixed distances."""
_PADDING = 2 * CHUNK
"""T is padded to a multiple of this, the rows of one program of the backward."""
_BLOCK = 32


@triton.jit
def _numbers_kernel(
    p_do, p_o, p_o2, p_lam, p_lse, p_numbers, p_dlam,
    stride_gb, stride_gt, stride_gh, stride_lb, stride_lt, stride_lh,
    num_queries, num_heads, num_padded,
    VALUE_DIM: tl.constexpr, BLOCK_M: tl.constexpr, CHUNK: tl.constexpr, NUM_NUMBERS: tl.constexpr,
):  # fmt: skip
    """The numbers ``[B, H, padded T / 64, 5, 64]`` and dλ = -D2 ``[B, T, H]``.

    D2 = rowsum(dO O2), D1 = rowsum(dO O) + λ D2. A log sum of +inf in the padding makes weights 0.
    """
    i_head = tl.program_id(1).to(tl.int64)
    i_batch = tl.program_id(2).to(tl.int64)
    b_queries = tl.program_id(0) * BLOCK_M + tl.arange(0, BLOCK_M)
    m_queries = b_queries < num_queries
    m_tile = m_queries[:, None]
    b_rows = b_queries.to(tl.int64)
    b_values = tl.arange(0, VALUE_DIM)[None, :]
    p_do += i_batch * stride_gb + i_head * stride_gh
    b_do = tl.load(p_do + b_rows[:, None] * stride_gt + b_values, mask=m_tile, other=0.0)
    b_do = b_do.to(tl.float32)
    i_rows = (i_batch * num_queries + b_rows) * num_heads + i_head
    i_values = i_rows[:, None] * VALUE_DIM + b_values
    b_o2 = tl.load(p_o2 + i_values, mask=m_tile, other=0.0).to(tl.float32)
    b_delta2 = tl.sum(b_do * b_o2, 1)
    p_lam += i_batch * stride_lb + i_head * stride_lh
    b_lam = tl.load(p_lam + b_rows * stride_lt, mask=m_queries, other=0.0)
    b_o = tl.load(p_o + i_values, mask=m_tile, other=0.0).to(tl.float32)
    b_delta1 = tl.sum(b_do * b_o, 1) + b_lam * b_delta2
    i_head_row = i_batch * num_heads + i_head
    p_lse += i_head_row * 2 * num_queries + b_queries
    b_lse1 = tl.load(p_lse, mask=m_queries, other=float("inf"))
    b_lse2 = tl.load(p_lse + num_queries, mask=m_queries, other=float("inf"))
    b_tokens = i_head_row * num_padded + b_queries
    p_numbers += b_tokens // CHUNK * (CHUNK * NUM_NUMBERS) + b_tokens % CHUNK
    tl.store(p_numbers, b_lse1)
    tl.store(p_numbers + CHUNK, b_lse2)
    tl.store(p_numbers + 2 * CHUNK, b_delta1)
    tl.store(p_numbers + 3 * CHUNK, b_delta2)
    tl.store(p_numbers + 4 * CHUNK, b_lam)
    tl.store(p_dlam + i_rows, -b_delta2, mask=m_queries)


def numbers_of(
    grad: Tensor, o: Tensor, o2: Tensor, lam: Tensor, lse: Tensor
) -> tuple[Tensor, Tensor]:
    """The numbers of every query ``[B, H, padded T / 64, 5, 64]`` and dλ ``[B, T, H]``."""
    batch, num_queries, num_heads, value_dim = grad.shape
    num_padded = num_blocks(num_queries, _PADDING) * _PADDING
    numbers = lse.new_empty(batch, num_heads, num_padded // CHUNK, NUM_NUMBERS, CHUNK)
    dlam = lse.new_empty(batch, num_queries, num_heads)
    lam = lam.expand(batch, num_queries, num_heads)
    run_kernel(
        _numbers_kernel, (num_padded // _BLOCK, num_heads, batch),
        (grad, o.contiguous(), o2.contiguous(), lam, lse.contiguous(), numbers, dlam),
        (*grad.stride()[:3], *lam.stride(), num_queries, num_heads, num_padded),
        VALUE_DIM=value_dim, BLOCK_M=_BLOCK, CHUNK=CHUNK, NUM_NUMBERS=NUM_NUMBERS,
        num_warps=4,
    )  # fmt: skip
    return numbers, dlam


@triton.jit
def _cast_sums_kernel(
    p_sums, p_dq, num_queries, num_heads, scale,
    HEAD_DIM: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """dQ ``[B, T, H, 2, D]`` from the sums of all tiles. Grid ``(tiles, H, B)``."""
    i_tile, i_head, i_batch = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    b_channels = tl.arange(0, 2 * HEAD_DIM)[:, None]
    b_queries = tl.arange(0, BLOCK)[None, :]
    i_tiles = (i_batch.to(tl.int64) * num_heads + i_head) * tl.num_programs(0) + i_tile
    b_sums = tl.load(p_sums + i_tiles * (2 * HEAD_DIM * BLOCK) + b_channels * BLOCK + b_queries)
    b_rows = i_tile * BLOCK + b_queries
    i_rows = (i_batch.to(tl.int64) * num_queries + b_rows) * num_heads + i_head
    b_dq = (b_sums * scale).to(p_dq.dtype.element_ty)
    tl.store(p_dq + i_rows * (2 * HEAD_DIM) + b_channels, b_dq, mask=b_rows < num_queries)


def cast_sums(sums: Tensor, dq: Tensor, scale: float) -> None:
    """Write float32 sums of tiles of queries, ``[B, H, tiles, 2, D, queries]``, times the scale to
    ``dq``, ``[B, T, H, 2, D]``."""
    batch, num_heads, num_tiles, _, head_dim, block = sums.shape
    run_kernel(
        _cast_sums_kernel, (num_tiles, num_heads, batch),
        (sums, dq), (dq.shape[1], num_heads, scale),
        HEAD_DIM=head_dim, BLOCK=block, num_warps=4,
    )  # fmt: skip
