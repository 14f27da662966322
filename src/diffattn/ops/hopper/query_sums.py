"""dQ of the one-pass Hopper backward: memory for its float32 sums, and their cast to dQ's dtype."""

import triton
import triton.language as tl
from torch import Tensor

from diffattn.ops.triton.launcher import run_kernel


def zero_sums(numbers: Tensor, head_dim: int, block: int) -> Tensor:
    """Float32 zeros to sum dQ of tiles of ``block`` queries: ``[B, H, tiles, 2, D, block]``."""
    batch, num_heads, num_chunks, _, chunk = numbers.shape
    num_tiles = num_chunks * chunk // block
    return numbers.new_zeros(batch, num_heads, num_tiles, 2, head_dim, block)


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
    """Write the sums times the scale to ``dq``, ``[B, T, H, 2, D]``."""
    batch, num_heads, num_tiles, _, head_dim, block = sums.shape
    run_kernel(
        _cast_sums_kernel, (num_tiles, num_heads, batch),
        (sums, dq), (dq.shape[1], num_heads, scale),
        HEAD_DIM=head_dim, BLOCK=block, num_warps=4,
    )  # fmt: skip
