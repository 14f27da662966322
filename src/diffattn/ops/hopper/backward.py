r"""Warp-specialised backward for Hopper (compute capability 9.0). Compiled, never run.

One kernel computes all gradients. Rows are keys for dK and dV, and queries for dQ. A program has
128 rows, 64 for each of two warpgroups, or 64 rows whose sums both warpgroups share. It loops over
tiles of the other side, which one warp copies.

If registers hold dK and dV of 128 keys, the same pass adds to dQ, in float32 and in an order that
varies. Otherwise, and under ``torch.use_deterministic_algorithms``, dQ has a separate pass with
queries as rows. Then no two programs add to one number, and results are the same in every run.

With X the rows' side and Y the tiles' side, one turn of a warpgroup is

.. math:: S_m = X_m Y_m^\top,\quad dP = V\,dO^\top,\quad dX_m \mathrel{+}= dS_m Y_m,\quad
          dV \mathrel{+}= (A_1 - \lambda A_2)^\top dO

Turn i uses slot ``i % STAGES`` of a ring of buffers, in phase ``i // STAGES`` of its barriers:

- ``own_ready``: one per 64 rows, complete when they are in shared memory.
- ``ready``: one per slot, complete when its tile and the tile's numbers are in shared memory.
- ``empty``: one per slot, with an arrival of each warpgroup after the products that read it.
- ``given``: two per exchanging warpgroup, complete in each turn when its A1 - λ A2, or the dS of
  the other's map, is in shared memory. In the pass that adds to dQ: one per slot, complete when dS
  of both warpgroups is there.
"""

import torch
from torch import Tensor
from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import fence_async_shared, mbarrier
from triton.experimental.gluon.nvidia.hopper import TensorDescriptor

from diffattn.ops.hopper.backward_launches import (
    MAX_REGISTERS,
    block_shapes,
    kernel_constants,
    launches,
)
from diffattn.ops.hopper.backward_turns import _fold, _fold_exchanging, _number
from diffattn.ops.hopper.forward import (
    _allocate,
    _allocate_barriers,
    _descriptor,
    _load_tile,
    shared_layout,
)
from diffattn.ops.hopper.numbers import CHUNK, cast_sums, numbers_of
from diffattn.ops.triton.configs import FP_FUSION
from diffattn.ops.triton.launch import LOG2_E, dense_rows, num_blocks

_FLOAT32 = gl.float32


@gluon.jit
def _produce(
    descriptors, own_bufs, ring_bufs, own_ready, ready, empty, i_b, i_own, first_row, begin, end,
    BY_KEYS: gl.constexpr, WITH_X: gl.constexpr, GROUP: gl.constexpr, OWN_MAPS: gl.constexpr,
    TILE_MAPS: gl.constexpr, ROWS: gl.constexpr, BLOCK: gl.constexpr, STAGES: gl.constexpr,
    NUM_GROUPS: gl.constexpr, NUM_NUMBERS: gl.constexpr,
):  # fmt: skip
    """The copying warp: rows of both warpgroups, then all tiles of all heads of the other side."""
    own_x_desc, own_v_desc, x_desc, v_desc, numbers_desc = descriptors
    own_x_bufs, own_v_bufs = own_bufs
    x_bufs, v_bufs, numbers_bufs = ring_bufs
    numbers_bytes: gl.constexpr = NUM_NUMBERS * numbers_desc.block_type.nbytes
    own_bytes: gl.constexpr = (
        OWN_MAPS * own_x_desc.block_type.nbytes
        + (own_v_desc.block_type.nbytes if WITH_X else 0)
        + (0 if BY_KEYS else numbers_bytes)
    )
    tile_bytes: gl.constexpr = (
        TILE_MAPS * x_desc.block_type.nbytes
        + v_desc.block_type.nbytes
        + (numbers_bytes if BY_KEYS else 0)
    )
    for i in gl.static_range(NUM_GROUPS):
        row = first_row + i * ROWS
        barrier = own_ready.index(i)
        mbarrier.expect(barrier, own_bytes)
        for m in gl.static_range(OWN_MAPS):
            _load_tile(
                own_x_desc, [i_b, row, i_own, m, 0], barrier, own_x_bufs.index(i * OWN_MAPS + m)
            )
        if WITH_X:
            _load_tile(own_v_desc, [i_b, row, i_own, 0], barrier, own_v_bufs.index(i))
        if not BY_KEYS:
            _load_numbers(
                numbers_desc, numbers_bufs, barrier, i_b, i_own, row, i, ROWS, NUM_NUMBERS
            )
    for member in range(GROUP if BY_KEYS else 1):
        head = i_own * GROUP + member if BY_KEYS else i_own // GROUP
        for j in range(begin, end):
            step = member * (end - begin) + j - begin
            slot = step % STAGES
            start = j * BLOCK
            barrier = ready.index(slot)
            # A new barrier counts as having completed phase 1: the first round does not wait.
            mbarrier.wait(empty.index(slot), (step // STAGES & 1) ^ 1)
            mbarrier.expect(barrier, tile_bytes)
            for m in gl.static_range(TILE_MAPS):
                _load_tile(
                    x_desc, [i_b, start, head, m, 0], barrier, x_bufs.index(slot * TILE_MAPS + m)
                )
            _load_tile(v_desc, [i_b, start, head, 0], barrier, v_bufs.index(slot))
            if BY_KEYS:
                _load_numbers(
                    numbers_desc, numbers_bufs, barrier, i_b, head, start, slot, ROWS, NUM_NUMBERS
                )


@gluon.jit
def _load_numbers(
    desc, bufs, barrier, i_b, i_head, start, slot, CHUNK: gl.constexpr, NUM_NUMBERS: gl.constexpr
):  # fmt: skip
    """Copy the numbers of a tile's queries from ``start`` on, which are all in one chunk."""
    first = start // CHUNK * (CHUNK * NUM_NUMBERS) + start % CHUNK
    for n in gl.static_range(NUM_NUMBERS):
        _load_tile(
            desc, [i_b, i_head, first + n * CHUNK], barrier, bufs.index(slot * NUM_NUMBERS + n)
        )


@gluon.jit
def _limits(
    rows, ahead, num_keys, BY_KEYS: gl.constexpr, CAUSAL: gl.constexpr
):  # fmt: skip
    """Argument of :func:`_seen`: a key's first query, or the number of keys that a query sees.

    Causal masks are aligned bottom-right. Keys after the last key are hidden, as their logits are 0
    and their weights may be inf.
    """
    if BY_KEYS:
        b_own = rows - ahead
        if not CAUSAL:
            b_own = gl.where(rows < num_keys, rows * 0 - (1 << 30), rows + (1 << 30))
    else:
        b_own = gl.minimum(rows + ahead + 1, num_keys) if CAUSAL else rows * 0 + num_keys
    return b_own


@gluon.jit
def _consume(
    shared, pointers, i_b, i_own, first_row, begin, end, num_queries, num_keys, num_heads,
    scale_log2,
    I_GROUP: gl.constexpr, BY_KEYS: gl.constexpr, WITH_X: gl.constexpr, WITH_V: gl.constexpr,
    WITH_Q: gl.constexpr, EXCHANGE: gl.constexpr, CAUSAL: gl.constexpr, GROUP: gl.constexpr,
    OWN_MAPS: gl.constexpr, TILE_MAPS: gl.constexpr, ROWS: gl.constexpr, BLOCK: gl.constexpr,
    STAGES: gl.constexpr, HEAD_DIM: gl.constexpr, VALUE_DIM: gl.constexpr,
    NUM_NUMBERS: gl.constexpr,
):  # fmt: skip
    """One multiplying warpgroup: its sums over all tiles, then its part of the output."""
    own_bufs, ring_bufs, given_bufs, own_ready, ready, empty, given = shared
    p_x, p_v, p_dq = pointers
    v_width: gl.constexpr = VALUE_DIM // 2 if EXCHANGE else VALUE_DIM
    layout: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, BLOCK, 16])
    x_layout: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, HEAD_DIM, 16])
    v_layout: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, v_width, 16])
    dtype: gl.constexpr = own_bufs[0].dtype

    if not EXCHANGE:
        first_row = first_row + I_GROUP * ROWS
    rows = first_row + gl.arange(0, ROWS, layout=gl.SliceLayout(1, layout))
    b_own = _limits(rows, num_keys - num_queries, num_keys, BY_KEYS, CAUSAL)
    if not BY_KEYS:
        begin = begin * 0  # begin is 0 here, which the compiler does not know

    mbarrier.wait(own_ready.index(0 if EXCHANGE else I_GROUP), 0)
    if WITH_Q:
        # The other warpgroup has waited for its keys, but every reader must wait for the barrier.
        mbarrier.wait(own_ready.index(1 - I_GROUP), 0)
        padding: gl.constexpr = 2 * ROWS
        head_sums = gl.cdiv(num_queries, padding) * (padding * 2 * HEAD_DIM)
        p_dq += (i_b * num_heads + i_own * GROUP).to(gl.int64) * head_sums
    b_x1 = gl.zeros([ROWS, HEAD_DIM], gl.float32, layout=x_layout)
    b_x2 = gl.zeros([ROWS, HEAD_DIM], gl.float32, layout=x_layout)
    b_v = gl.zeros([ROWS, v_width], gl.float32, layout=v_layout)
    for member in range(GROUP if BY_KEYS else 1):
        offset = member * (end - begin) - begin
        if EXCHANGE:
            b_x1, b_v = _fold_exchanging(
                b_x1, b_v, own_bufs, b_own, ring_bufs, given_bufs, ready, empty, given, begin, end,
                offset, num_queries, scale_log2, I_GROUP, BLOCK, STAGES, VALUE_DIM,
                NUM_NUMBERS, layout, x_layout, v_layout,
            )  # fmt: skip
        else:
            b_x1, b_x2, b_v = _fold(
                b_x1, b_x2, b_v, p_dq, own_bufs, b_own, ring_bufs, given_bufs, ready, empty, given,
                begin, end, offset, scale_log2, I_GROUP, BY_KEYS, WITH_X, WITH_V, WITH_Q, OWN_MAPS,
                TILE_MAPS, BLOCK, STAGES, NUM_NUMBERS, layout, x_layout, v_layout,
            )  # fmt: skip
            if WITH_Q:
                p_dq += head_sums
    if WITH_X and OWN_MAPS == 2 and not BY_KEYS:
        b_x2 = b_x2 * _number(ring_bufs[2], 0, 4, False, I_GROUP, NUM_NUMBERS, ROWS, x_layout)
    _store_sums(
        p_x, p_v, b_x1, b_x2, b_v, i_b, i_own, first_row,
        num_keys if BY_KEYS else num_queries, num_heads // GROUP if BY_KEYS else num_heads,
        scale_log2 * 0.6931471805599453, I_GROUP, WITH_X, WITH_V, EXCHANGE, OWN_MAPS, dtype,
        x_layout, v_layout,
    )  # fmt: skip


@gluon.jit
def _store_sums(
    p_x, p_v, b_x1, b_x2, b_v, i_b, i_own, first_row, num_rows, num_heads, scale,
    I_GROUP: gl.constexpr, WITH_X: gl.constexpr, WITH_V: gl.constexpr, EXCHANGE: gl.constexpr,
    OWN_MAPS: gl.constexpr, DTYPE: gl.constexpr, X_LAYOUT: gl.constexpr, V_LAYOUT: gl.constexpr,
):  # fmt: skip
    """Write a warpgroup's part of the output."""
    head_dim: gl.constexpr = b_x1.shape[1]
    v_width: gl.constexpr = b_v.shape[1]
    head_row = i_b.to(gl.int64) * num_rows * num_heads + i_own
    if WITH_X:
        x_stride = num_heads * (OWN_MAPS * head_dim)
        p_x += head_row * (OWN_MAPS * head_dim)
        if EXCHANGE:
            p_x += I_GROUP * head_dim
        _store(p_x, b_x1 * scale, first_row, num_rows, x_stride, DTYPE, X_LAYOUT)
        if OWN_MAPS == 2 and not EXCHANGE:
            p_x += head_dim
            _store(p_x, b_x2 * scale, first_row, num_rows, x_stride, DTYPE, X_LAYOUT)
    if WITH_V:
        value_dim: gl.constexpr = v_width * (2 if EXCHANGE else 1)
        p_v += head_row * value_dim
        if EXCHANGE:
            p_v += I_GROUP * v_width
        _store(p_v, b_v, first_row, num_rows, num_heads * value_dim, DTYPE, V_LAYOUT)


@gluon.jit
def _store(
    p_rows, b_sum, first_row, num_rows, stride, DTYPE: gl.constexpr, LAYOUT: gl.constexpr
):  # fmt: skip
    """Write the existing rows of a sum."""
    rows = first_row + gl.arange(0, b_sum.shape[0], layout=gl.SliceLayout(1, LAYOUT))
    columns = gl.arange(0, b_sum.shape[1], layout=gl.SliceLayout(0, LAYOUT))
    offsets = rows.to(gl.int64)[:, None] * stride + columns[None, :]
    m_rows = (rows < num_rows)[:, None]
    gl.store(p_rows + offsets, b_sum.to(DTYPE), mask=m_rows)


@gluon.jit
def _tiles(
    first_row, num_queries, num_keys, BY_KEYS: gl.constexpr, CAUSAL: gl.constexpr,
    NUM_ROWS: gl.constexpr, BLOCK: gl.constexpr,
):  # fmt: skip
    """Tiles [begin, end) of queries that see any of the rows, or of keys that any row sees."""
    ahead = num_keys - num_queries
    begin = first_row * 0
    if BY_KEYS:
        if CAUSAL:
            begin = gl.maximum(first_row - ahead, 0) // BLOCK
        end = gl.cdiv(num_queries, BLOCK)
    else:
        seen = num_keys
        if CAUSAL:
            seen = gl.maximum(gl.minimum(num_keys, first_row + NUM_ROWS + ahead), 0)
        end = gl.cdiv(seen, BLOCK)
    return begin, end


@gluon.jit
def _allocate_tiles(
    own_x_desc, own_v_desc, x_desc, v_desc, numbers_desc,
    NUM_GROUPS: gl.constexpr, OWN_MAPS: gl.constexpr, TILE_MAPS: gl.constexpr,
    STAGES: gl.constexpr, NUM_NUMBERS: gl.constexpr, BY_KEYS: gl.constexpr, WITH_X: gl.constexpr,
):  # fmt: skip
    """Shared memory for the rows, and for the ring of tiles and their numbers."""
    own_x_bufs = _allocate(own_x_desc, NUM_GROUPS * OWN_MAPS)
    x_bufs = _allocate(x_desc, STAGES * TILE_MAPS)
    v_bufs = _allocate(v_desc, STAGES)
    own_v_bufs = v_bufs
    if WITH_X:
        own_v_bufs = _allocate(own_v_desc, NUM_GROUPS)
    numbers_bufs = _allocate(numbers_desc, (STAGES if BY_KEYS else NUM_GROUPS) * NUM_NUMBERS)
    return (own_x_bufs, own_v_bufs), (x_bufs, v_bufs, numbers_bufs)


@gluon.jit
def _diff_attention_bwd_hopper_kernel(
    own_x_desc, own_v_desc, x_desc, v_desc, numbers_desc, p_x, p_v, p_dq,
    num_queries, num_keys, num_heads, scale_log2,
    BY_KEYS: gl.constexpr, WITH_X: gl.constexpr, WITH_V: gl.constexpr, WITH_Q: gl.constexpr,
    EXCHANGE: gl.constexpr, CAUSAL: gl.constexpr, SHARED_KEYS: gl.constexpr, GROUP: gl.constexpr,
    HEAD_DIM: gl.constexpr, VALUE_DIM: gl.constexpr, ROWS: gl.constexpr, NUM_GROUPS: gl.constexpr,
    BLOCK: gl.constexpr, STAGES: gl.constexpr, NUM_NUMBERS: gl.constexpr,
    CONSUMER_REGISTERS: gl.constexpr, PRODUCER_REGISTERS: gl.constexpr,
):  # fmt: skip
    """dK ``[B, S, Hkv, 2, D]`` or ``[B, S, Hkv, D]`` and dV ``[B, S, Hkv, Dv]``, or dQ.

    Grid ``(blocks of rows, Hkv or H, B)``.
    """
    own_maps: gl.constexpr = 1 if SHARED_KEYS and BY_KEYS else 2
    tile_maps: gl.constexpr = 1 if SHARED_KEYS and not BY_KEYS else 2
    row_groups: gl.constexpr = 1 if EXCHANGE else NUM_GROUPS
    turn: gl.constexpr = 2 if EXCHANGE else 1  # tiles
    # Under a causal mask the first keys and the last queries have most work: start with them.
    i_block = gl.program_id(0) if BY_KEYS else gl.num_programs(0) - 1 - gl.program_id(0)
    first_row = i_block * (ROWS * row_groups)
    i_own, i_b = gl.program_id(1), gl.program_id(2)
    begin, end = _tiles(
        first_row, num_queries, num_keys, BY_KEYS, CAUSAL, ROWS * row_groups, turn * BLOCK
    )
    begin, end = turn * begin, turn * end
    own_bufs, ring_bufs = _allocate_tiles(
        own_x_desc, own_v_desc, x_desc, v_desc, numbers_desc, row_groups, own_maps, tile_maps,
        STAGES, NUM_NUMBERS, BY_KEYS, WITH_X,
    )  # fmt: skip
    own_ready = _allocate_barriers(row_groups, 1)
    ready = _allocate_barriers(STAGES, 1)
    empty = _allocate_barriers(STAGES, NUM_GROUPS)
    given_bufs, given = ring_bufs[0], ready
    if EXCHANGE or WITH_Q:
        num_tiles: gl.constexpr = 4 if EXCHANGE else 4 * STAGES
        layout: gl.constexpr = gl.NVMMASharedLayout.get_default_for([ROWS, BLOCK], x_desc.dtype)
        given_bufs = gl.allocate_shared_memory(x_desc.dtype, [num_tiles, ROWS, BLOCK], layout)
        given = _allocate_barriers(4 if EXCHANGE else STAGES, 1 if EXCHANGE else NUM_GROUPS)
    # Make the initialised barriers visible to the copy engine, which arrives at them.
    fence_async_shared()
    shared = (own_bufs, ring_bufs, given_bufs, own_ready, ready, empty, given)
    gl.warp_specialize([
        (_consume, (shared, (p_x, p_v, p_dq), i_b, i_own, first_row, begin, end, num_queries,
                    num_keys, num_heads, scale_log2, 0, BY_KEYS, WITH_X, WITH_V, WITH_Q,
                    EXCHANGE, CAUSAL, GROUP, own_maps, tile_maps, ROWS, BLOCK, STAGES, HEAD_DIM,
                    VALUE_DIM, NUM_NUMBERS)),
        (_consume, (shared, (p_x, p_v, p_dq), i_b, i_own, first_row, begin, end, num_queries,
                    num_keys, num_heads, scale_log2, 1, BY_KEYS, WITH_X, WITH_V, WITH_Q,
                    EXCHANGE, CAUSAL, GROUP, own_maps, tile_maps, ROWS, BLOCK, STAGES, HEAD_DIM,
                    VALUE_DIM, NUM_NUMBERS)),
        (_produce, ((own_x_desc, own_v_desc, x_desc, v_desc, numbers_desc), own_bufs, ring_bufs,
                    own_ready, ready, empty, i_b, i_own, first_row, begin, end, BY_KEYS, WITH_X,
                    GROUP, own_maps, tile_maps, ROWS, BLOCK, STAGES, row_groups, NUM_NUMBERS)),
    ], [4, 1], [CONSUMER_REGISTERS, PRODUCER_REGISTERS])  # fmt: skip


def backward(
    grad: Tensor, q: Tensor, k: Tensor, v: Tensor, lam: Tensor, o: Tensor, o2: Tensor,
    lse: Tensor, *, scale: float, causal: bool = True,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:  # fmt: skip
    r"""Gradients of ``q``, ``k``, ``v`` and λ, in the shapes and dtypes of their tensors.

    .. math:: dS_1 = A_1 (dP - D_1),\quad dS_2 = -\lambda A_2 (dP - D_2),\quad
              dV = (A_1 - \lambda A_2)^\top dO,\quad d\lambda = -D_2

    Source: arXiv:2410.05258v2, Appendix G.

    ``grad`` is the gradient of the output. All others are arguments and results of
    :func:`diffattn.ops.hopper.forward.forward`.
    """
    batch, num_queries, num_heads, _, head_dim = q.shape
    num_keys, num_kv_heads, value_dim = v.shape[1:]
    shared_keys = k.ndim == 4
    keys = k.unsqueeze(3) if shared_keys else k  # [B, S, Hkv, 1 or 2, D]
    numbers, dlam = numbers_of(dense_rows(grad), o, o2, lam, lse)
    dq, dk, dv = (torch.empty(x.shape, dtype=x.dtype, device=x.device) for x in (q, k, v))
    sums = numbers  # a placeholder: launches that do not add to dQ read no sums
    deterministic = torch.are_deterministic_algorithms_enabled()
    for launch in launches(head_dim, value_dim, shared_keys, deterministic):
        constants = kernel_constants(
            launch, num_heads // num_kv_heads, head_dim, value_dim, causal, shared_keys
        )
        shapes = block_shapes(launch, head_dim, value_dim, constants["BLOCK"])
        sides = (keys, v, q, grad) if launch.by_keys else (q, grad, keys, v)
        descriptors = [_descriptor(x, shape) for x, shape in zip(sides, shapes, strict=False)]
        if launch.with_q:
            block = constants["BLOCK"]
            num_tiles = numbers.shape[2] * CHUNK // block
            sums = numbers.new_zeros(batch, num_heads, num_tiles, 2, head_dim, block)
        rows, heads = (num_keys, num_kv_heads) if launch.by_keys else (num_queries, num_heads)
        _diff_attention_bwd_hopper_kernel[num_blocks(rows, launch.num_rows), heads, batch](
            *descriptors, _numbers_descriptor(numbers, shapes[-1]),
            dk if launch.by_keys else dq, dv, sums, num_queries, num_keys, num_heads,
            scale * LOG2_E,
            **constants, num_warps=4, maxnreg=MAX_REGISTERS, **FP_FUSION,
        )  # fmt: skip
        if launch.with_q:
            cast_sums(sums, dq, scale)
    return dq, dk, dv, dlam.sum_to_size(lam.shape)


def _numbers_descriptor(numbers: Tensor, block_shape: list[int]) -> TensorDescriptor:
    layout = shared_layout(block_shape, _FLOAT32)
    rows = numbers.flatten(2)  # [B, H, 5 padded T]
    return TensorDescriptor(rows, list(rows.shape), list(rows.stride()), block_shape, layout)
