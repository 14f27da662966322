"""Warp-specialised forward for Hopper (compute capability 9.0).

One warp copies tiles with the tensor memory accelerator, and one warpgroup per map multiplies them.
So a map's accumulator has the registers of four warps, and each tile of V serves both maps. At the
end the warpgroup of map 2 passes its normalised O2 to that of map 1 through shared memory. The same
tensors are saved as by :mod:`~diffattn.ops.triton.forward`, so its backward pass can follow.

Its results were correct on an H200. Where there is none, tests run the source in Python.

Tile j uses slot ``j % STAGES`` of a ring of buffers, in phase ``j // STAGES`` of its barriers:

- ``ready``: one arrival by the producer, with the number of bytes; complete when they are in
  shared memory. One per map and slot for K, one per slot for V, one per map for Q.
- ``empty``: one arrival by each reader, 1 for K and 2 for V, after the products that read the slot.
- ``handed_over``: one arrival by map 2, when O2 is in shared memory.
"""

import torch
import triton
from torch import Tensor
from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import (
    fence_async_shared,
    mbarrier,
    tma,
    warpgroup_mma,
    warpgroup_mma_wait,
)
from triton.experimental.gluon.nvidia.hopper import TensorDescriptor

from diffattn.ops.triton.configs import FP_FUSION
from diffattn.ops.triton.launch import LOG2_E

# Gluon renamed its barrier in triton 3.7 and its copy in 3.8.
_sync_warpgroup = gl.barrier if hasattr(gl, "barrier") else gl.thread_barrier
_load_tile = tma.async_load if hasattr(tma, "async_load") else tma.async_copy_global_to_shared

BLOCK_QUERIES = 64
"""Queries per warpgroup, the rows of one product: with twice as many, registers do not suffice."""
TILES = {64: (128, 2), 128: (64, 2)}
"""head_dim -> keys per tile and slots of the ring, to fit 227 KiB together with Q and O2."""
_CONSUMER_REGISTERS = 240
_PRODUCER_REGISTERS = 24
MAX_REGISTERS = 168
"""Registers per thread at launch: 12 warps * 168 = 4 * 24 + 8 * 240."""
_GL_DTYPES = {torch.float16: gl.float16, torch.bfloat16: gl.bfloat16}


@gluon.jit
def _allocate(desc, num_tiles: gl.constexpr):
    """Shared memory for ``num_tiles`` tiles."""
    shape: gl.constexpr = [num_tiles] + desc.block_shape  # noqa: RUF005  Gluon knows no star here
    return gl.allocate_shared_memory(desc.dtype, shape, desc.layout)


@gluon.jit
def _produce(
    descriptors, q_bufs, k1_bufs, k2_bufs, v_bufs,
    q_ready, k1_ready, k2_ready, v_ready, k1_empty, k2_empty, v_empty,
    i_b, i_h, i_kv, first_query, num_blocks,
    SHARED_KEYS: gl.constexpr, BLOCK_KEYS: gl.constexpr, STAGES: gl.constexpr,
):  # fmt: skip
    """The copying warp: both tiles of Q, then K1, K2 and V of every block of keys."""
    q_desc, k_desc, v_desc = descriptors
    k2_map: gl.constexpr = 0 if SHARED_KEYS else 1
    for i_map in gl.static_range(2):
        mbarrier.expect(q_ready.index(i_map), q_desc.block_type.nbytes)
        _load_tile(
            q_desc, [i_b, first_query, i_h, i_map, 0], q_ready.index(i_map), q_bufs.index(i_map)
        )
    for j in range(num_blocks):
        slot = j % STAGES
        # A new barrier counts as having completed phase 1: the first round does not wait.
        free = (j // STAGES & 1) ^ 1
        start = j * BLOCK_KEYS
        mbarrier.wait(k1_empty.index(slot), free)
        mbarrier.expect(k1_ready.index(slot), k_desc.block_type.nbytes)
        _load_tile(k_desc, [i_b, start, i_kv, 0, 0], k1_ready.index(slot), k1_bufs.index(slot))
        mbarrier.wait(k2_empty.index(slot), free)
        mbarrier.expect(k2_ready.index(slot), k_desc.block_type.nbytes)
        _load_tile(k_desc, [i_b, start, i_kv, k2_map, 0], k2_ready.index(slot), k2_bufs.index(slot))
        mbarrier.wait(v_empty.index(slot), free)
        mbarrier.expect(v_ready.index(slot), v_desc.block_type.nbytes)
        _load_tile(v_desc, [i_b, start, i_kv, 0], v_ready.index(slot), v_bufs.index(slot))


@gluon.jit
def _weights(
    b_s, b_max, b_sum, b_last, start, scale_log2,
    MASKED: gl.constexpr, BLOCK_KEYS: gl.constexpr, DTYPE: gl.constexpr,
    S_LAYOUT: gl.constexpr, P_LAYOUT: gl.constexpr,
):  # fmt: skip
    """One step of the online softmax: weights in ``DTYPE``, new maximum and sum, and the factor
    that rescales earlier results."""
    if MASKED:
        keys = start + gl.arange(0, BLOCK_KEYS, layout=gl.SliceLayout(0, S_LAYOUT))
        b_s = gl.where(keys[None, :] < b_last[:, None], b_s, float("-inf"))
    b_max_new = gl.maximum(b_max, gl.max(b_s, axis=1) * scale_log2)
    # A row without a visible key so far has maximum -inf, and -inf - -inf would be NaN.
    b_base = gl.where(b_max_new == float("-inf"), 0.0, b_max_new)
    b_shrink = gl.exp2(b_max - b_base)
    b_p = gl.exp2(b_s * scale_log2 - b_base[:, None])
    b_sum = b_sum * b_shrink + gl.sum(b_p, axis=1)
    return gl.convert_layout(b_p.to(DTYPE), P_LAYOUT), b_max_new, b_sum, b_shrink


@gluon.jit
def _fold(
    b_q, b_p, b_acc, b_max, b_sum, b_last, begin, end, scale_log2,
    k_bufs, v_bufs, k_ready, k_empty, v_ready, v_empty,
    MASKED: gl.constexpr, BLOCK_KEYS: gl.constexpr, STAGES: gl.constexpr, DTYPE: gl.constexpr,
    S_LAYOUT: gl.constexpr, P_LAYOUT: gl.constexpr, O_ROWS: gl.constexpr,
    base=0, turns=None, GROUP: gl.constexpr = 0, GROUPS: gl.constexpr = 1,
):  # fmt: skip
    """Blocks [begin, end) of keys; an earlier block must have been computed.

    The order allows the softmax of block j to overlap the product of block j − 1 with V. But the
    assembler moves the second wait up, right after the first (docs/reference/numerics.md). So the
    softmax overlaps only with work of the other map's warpgroup. With ``GROUPS`` above 1 there is a
    third wait in between. It never blocks, but the assembler moves no instruction across it.
    ``base`` is the number of blocks that used the ring before block 0.
    """
    block_queries: gl.constexpr = b_q.shape[0]
    head_dim: gl.constexpr = b_q.shape[1]
    value_dim: gl.constexpr = b_acc.shape[1]
    for j in range(begin, end):
        step = base + j
        slot = step % STAGES
        before = (step - 1) % STAGES
        mbarrier.wait(k_ready.index(slot), step // STAGES & 1)
        if GROUPS > 1:
            mbarrier.wait(turns.index(GROUP), (step & 1) ^ (GROUP == 0))
        b_k = k_bufs.index(slot).reshape([BLOCK_KEYS, head_dim]).permute((1, 0))
        b_s = gl.zeros([block_queries, BLOCK_KEYS], gl.float32, layout=S_LAYOUT)
        b_s = warpgroup_mma(b_q, b_k, b_s, use_acc=False, is_async=True)
        mbarrier.wait(v_ready.index(before), (step - 1) // STAGES & 1)
        b_v = v_bufs.index(before).reshape([BLOCK_KEYS, value_dim])
        b_acc = warpgroup_mma(b_p, b_v, b_acc, is_async=True)
        if GROUPS > 1:
            mbarrier.arrive(turns.index((GROUP + 1) % GROUPS), count=1)
        # Products finish in the order of issue: with one outstanding, the logits are complete.
        b_s = warpgroup_mma_wait(num_outstanding=1, deps=(b_s,))
        mbarrier.arrive(k_empty.index(slot), count=1)
        b_p_next, b_max, b_sum, b_shrink = _weights(
            b_s, b_max, b_sum, b_last, j * BLOCK_KEYS, scale_log2,
            MASKED, BLOCK_KEYS, DTYPE, S_LAYOUT, P_LAYOUT,
        )  # fmt: skip
        if GROUPS > 1:
            mbarrier.wait(v_ready.index(before), (step - 1) // STAGES & 1)
        # Until here the product also reads the weights in registers.
        b_acc, b_p = warpgroup_mma_wait(num_outstanding=0, deps=(b_acc, b_p))
        mbarrier.arrive(v_empty.index(before), count=1)
        b_acc = b_acc * gl.convert_layout(b_shrink, O_ROWS)[:, None]
        b_p = b_p_next
    return b_p, b_acc, b_max, b_sum


@gluon.jit
def _attend(
    q_buf, k_bufs, v_bufs, k_ready, k_empty, v_ready, v_empty, b_last, num_full, num_blocks,
    scale_log2, BLOCK_KEYS: gl.constexpr, STAGES: gl.constexpr, S_LAYOUT: gl.constexpr,
    O_LAYOUT: gl.constexpr, base=0, turns=None, GROUP: gl.constexpr = 0, GROUPS: gl.constexpr = 1,
):  # fmt: skip
    """One map over all keys: output times row sums, row sums, and their logarithms in base 2."""
    dtype: gl.constexpr = q_buf.dtype
    block_queries: gl.constexpr = q_buf.shape[1]
    value_dim: gl.constexpr = v_bufs.shape[4]
    p_layout: gl.constexpr = gl.DotOperandLayout(0, O_LAYOUT, k_width=2)
    o_rows: gl.constexpr = gl.SliceLayout(1, O_LAYOUT)
    b_q = q_buf.reshape([block_queries, q_buf.shape[4]])
    b_acc = gl.zeros([block_queries, value_dim], gl.float32, layout=O_LAYOUT)
    if GROUPS > 1:
        mbarrier.wait(turns.index(GROUP), (base & 1) ^ (GROUP == 0))
        mbarrier.arrive(turns.index((GROUP + 1) % GROUPS), count=1)
    b_p, b_max, b_sum = _first_block(
        b_q, b_last, k_bufs, k_ready, k_empty, scale_log2, BLOCK_KEYS, dtype, S_LAYOUT, p_layout,
        base % STAGES, base // STAGES & 1,
    )  # fmt: skip
    begin = gl.maximum(num_full, 1)
    b_p, b_acc, b_max, b_sum = _fold(
        b_q, b_p, b_acc, b_max, b_sum, b_last, 1, num_full, scale_log2,
        k_bufs, v_bufs, k_ready, k_empty, v_ready, v_empty,
        False, BLOCK_KEYS, STAGES, dtype, S_LAYOUT, p_layout, o_rows, base, turns, GROUP, GROUPS,
    )  # fmt: skip
    b_p, b_acc, b_max, b_sum = _fold(
        b_q, b_p, b_acc, b_max, b_sum, b_last, begin, num_blocks, scale_log2,
        k_bufs, v_bufs, k_ready, k_empty, v_ready, v_empty,
        True, BLOCK_KEYS, STAGES, dtype, S_LAYOUT, p_layout, o_rows, base, turns, GROUP, GROUPS,
    )  # fmt: skip
    step = base + num_blocks - 1
    mbarrier.wait(v_ready.index(step % STAGES), step // STAGES & 1)
    b_v = v_bufs.index(step % STAGES).reshape([BLOCK_KEYS, value_dim])
    b_acc = warpgroup_mma(b_p, b_v, b_acc, is_async=True)
    b_acc, b_p = warpgroup_mma_wait(num_outstanding=0, deps=(b_acc, b_p))
    if GROUPS > 1:
        mbarrier.arrive(v_empty.index(step % STAGES), count=1)
    m_none = b_sum == 0.0
    b_sum = gl.where(m_none, 1.0, b_sum)
    return b_acc, b_sum, gl.where(m_none, float("inf"), b_max + gl.log2(b_sum))


@gluon.jit
def _consume(
    q_bufs, k_bufs, v_bufs, q_ready, k_ready, k_empty, v_ready, v_empty,
    o2_buf, handed_over, p_out, p_o2, p_lse, p_lam, stride_lt, stride_o,
    first_query, num_queries, num_keys, num_full, num_blocks, scale_log2,
    MAP: gl.constexpr, CAUSAL: gl.constexpr, INFERENCE: gl.constexpr,
    BLOCK_QUERIES: gl.constexpr, BLOCK_KEYS: gl.constexpr,
    HEAD_DIM: gl.constexpr, VALUE_DIM: gl.constexpr, STAGES: gl.constexpr,
):  # fmt: skip
    """One multiplying warpgroup: one map over all keys, then its part of the output.

    Pointers point to this batch row and head. Every query sees all keys of ``num_full`` blocks.
    """
    dtype: gl.constexpr = q_bufs.dtype
    s_layout: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, BLOCK_KEYS, 16])
    o_layout: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, VALUE_DIM, 16])
    s_rows: gl.constexpr = gl.SliceLayout(1, s_layout)

    # Query i sees the keys before b_last[i]; bottom-right aligned if causal.
    b_last = first_query + gl.arange(0, BLOCK_QUERIES, layout=s_rows) + num_keys - num_queries + 1
    if not CAUSAL:
        b_last = b_last * 0 + num_keys
    b_last = gl.minimum(b_last, num_keys)

    mbarrier.wait(q_ready.index(MAP), 0)
    b_acc, b_sum, b_lse = _attend(
        q_bufs.index(MAP), k_bufs, v_bufs, k_ready, k_empty, v_ready, v_empty,
        b_last, num_full, num_blocks, scale_log2, BLOCK_KEYS, STAGES, s_layout, o_layout,
    )  # fmt: skip
    if not INFERENCE:
        s_queries = first_query + gl.arange(0, BLOCK_QUERIES, layout=s_rows)
        gl.store(p_lse + MAP * num_queries + s_queries, b_lse, mask=s_queries < num_queries)
    o_rows: gl.constexpr = gl.SliceLayout(1, o_layout)
    b_acc = b_acc * gl.convert_layout(1.0 / b_sum, o_rows)[:, None]
    _store(
        b_acc, o2_buf, handed_over, p_out, p_o2, p_lam, stride_lt, stride_o, first_query,
        num_queries, MAP, INFERENCE, BLOCK_QUERIES, VALUE_DIM, dtype, o_layout,
    )  # fmt: skip


@gluon.jit
def _first_block(
    b_q, b_last, k_bufs, k_ready, k_empty, scale_log2,
    BLOCK_KEYS: gl.constexpr, DTYPE: gl.constexpr, S_LAYOUT: gl.constexpr, P_LAYOUT: gl.constexpr,
    slot=0, phase=0,
):  # fmt: skip
    """Weights, maximum and sum of block 0, which has no earlier product with V to overlap."""
    block_queries: gl.constexpr = b_q.shape[0]
    head_dim: gl.constexpr = b_q.shape[1]
    mbarrier.wait(k_ready.index(slot), phase)
    b_k = k_bufs.index(slot).reshape([BLOCK_KEYS, head_dim]).permute((1, 0))
    b_s = gl.zeros([block_queries, BLOCK_KEYS], gl.float32, layout=S_LAYOUT)
    b_s = warpgroup_mma(b_q, b_k, b_s, use_acc=False, is_async=True)
    b_s = warpgroup_mma_wait(num_outstanding=0, deps=(b_s,))
    mbarrier.arrive(k_empty.index(slot), count=1)
    s_rows: gl.constexpr = gl.SliceLayout(1, S_LAYOUT)
    b_max = gl.full([block_queries], float("-inf"), gl.float32, layout=s_rows)
    b_sum = gl.zeros([block_queries], gl.float32, layout=s_rows)
    b_p, b_max, b_sum, _ = _weights(
        b_s, b_max, b_sum, b_last, 0, scale_log2, True, BLOCK_KEYS, DTYPE, S_LAYOUT, P_LAYOUT
    )
    return b_p, b_max, b_sum


@gluon.jit
def _store(
    b_acc, o2_buf, handed_over, p_out, p_o2, p_lam, stride_lt, stride_o, first_query, num_queries,
    MAP: gl.constexpr, INFERENCE: gl.constexpr, BLOCK_QUERIES: gl.constexpr,
    VALUE_DIM: gl.constexpr, DTYPE: gl.constexpr, O_LAYOUT: gl.constexpr,
):  # fmt: skip
    """Map 2 passes O2 on; map 1 subtracts it and writes O."""
    queries = first_query + gl.arange(0, BLOCK_QUERIES, layout=gl.SliceLayout(1, O_LAYOUT))
    values = gl.arange(0, VALUE_DIM, layout=gl.SliceLayout(0, O_LAYOUT))
    offsets = queries.to(gl.int64)[:, None] * stride_o + values[None, :]
    m_queries = queries < num_queries
    if MAP == 1:
        o2_buf.store(b_acc)
        # All threads must have stored before one of them arrives at the barrier.
        _sync_warpgroup()
        mbarrier.arrive(handed_over.index(0), count=1)
        if not INFERENCE:
            gl.store(p_o2 + offsets, b_acc.to(DTYPE), mask=m_queries[:, None])
    else:
        b_lam = gl.load(p_lam + queries.to(gl.int64) * stride_lt, mask=m_queries, other=0.0)
        mbarrier.wait(handed_over.index(0), 0)
        b_out = b_acc - b_lam[:, None] * o2_buf.load(O_LAYOUT)
        gl.store(p_out + offsets, b_out.to(DTYPE), mask=m_queries[:, None])


@gluon.jit
def _allocate_barriers(num: gl.constexpr, count: gl.constexpr):
    """``num`` barriers in shared memory, each completed by ``count`` arrivals."""
    barriers = gl.allocate_shared_memory(gl.int64, [num, 1], mbarrier.MBarrierLayout())
    for i in gl.static_range(num):
        mbarrier.init(barriers.index(i), count=count)
    return barriers


@gluon.jit
def _diff_attention_fwd_hopper_kernel(
    q_desc, k_desc, v_desc, p_out, p_o2, p_lse, p_lam, stride_lb, stride_lt, stride_lh,
    num_queries, num_keys, num_heads, scale_log2,
    GROUP: gl.constexpr, HEAD_DIM: gl.constexpr, VALUE_DIM: gl.constexpr,
    CAUSAL: gl.constexpr, SHARED_KEYS: gl.constexpr, INFERENCE: gl.constexpr,
    BLOCK_QUERIES: gl.constexpr, BLOCK_KEYS: gl.constexpr, STAGES: gl.constexpr,
    CONSUMER_REGISTERS: gl.constexpr, PRODUCER_REGISTERS: gl.constexpr,
):  # fmt: skip
    """O ``[B, T, H, Dv]``; for gradients also O2, and the logarithms in base 2 of the row sums
    ``[B, H, 2, T]``.

    Grid ``(query blocks, H, B)``.
    """
    # The last queries see the most keys under a causal mask: start with them.
    first_query = (gl.num_programs(0) - 1 - gl.program_id(0)) * BLOCK_QUERIES
    i_h = gl.program_id(1)
    i_b = gl.program_id(2)
    head = i_b.to(gl.int64) * num_heads + i_h
    out_offset = (i_b.to(gl.int64) * num_queries * num_heads + i_h) * VALUE_DIM
    p_out += out_offset
    p_o2 += out_offset
    p_lse += head * 2 * num_queries
    p_lam += i_b.to(gl.int64) * stride_lb + i_h.to(gl.int64) * stride_lh

    seen_by_all = num_keys
    seen = num_keys
    if CAUSAL:
        seen_by_all = gl.minimum(num_keys, first_query + num_keys - num_queries + 1)
        seen = gl.minimum(num_keys, first_query + BLOCK_QUERIES + num_keys - num_queries)
    # A block of queries that sees no key still reads block 0, hidden, to need no special case.
    num_blocks = gl.maximum(gl.cdiv(gl.maximum(seen, 0), BLOCK_KEYS), 1)
    num_full = gl.maximum(seen_by_all, 0) // BLOCK_KEYS

    _run_warps(
        q_desc, k_desc, v_desc, p_out, p_o2, p_lse, p_lam, stride_lt, num_heads * VALUE_DIM,
        i_b, i_h, i_h // GROUP, first_query, num_queries, num_keys, num_full, num_blocks,
        scale_log2, HEAD_DIM, VALUE_DIM, CAUSAL, SHARED_KEYS, INFERENCE, BLOCK_QUERIES, BLOCK_KEYS,
        STAGES, CONSUMER_REGISTERS, PRODUCER_REGISTERS,
    )  # fmt: skip


@gluon.jit
def _run_warps(
    q_desc, k_desc, v_desc, p_out, p_o2, p_lse, p_lam, stride_lt, stride_o,
    i_b, i_h, i_kv, first_query, num_queries, num_keys, num_full, num_blocks, scale_log2,
    HEAD_DIM: gl.constexpr, VALUE_DIM: gl.constexpr, CAUSAL: gl.constexpr,
    SHARED_KEYS: gl.constexpr, INFERENCE: gl.constexpr, BLOCK_QUERIES: gl.constexpr,
    BLOCK_KEYS: gl.constexpr, STAGES: gl.constexpr, CONSUMER_REGISTERS: gl.constexpr,
    PRODUCER_REGISTERS: gl.constexpr,
):  # fmt: skip
    """Allocate buffers and barriers, then run a warpgroup for each map and a copying warp."""
    q_bufs = _allocate(q_desc, 2)
    k1_bufs = _allocate(k_desc, STAGES)
    k2_bufs = _allocate(k_desc, STAGES)
    v_bufs = _allocate(v_desc, STAGES)
    o2_layout: gl.constexpr = gl.NVMMASharedLayout.get_default_for(
        [BLOCK_QUERIES, VALUE_DIM], gl.float32
    )
    o2_buf = gl.allocate_shared_memory(gl.float32, [BLOCK_QUERIES, VALUE_DIM], o2_layout)
    q_ready = _allocate_barriers(2, 1)
    k1_ready = _allocate_barriers(STAGES, 1)
    k2_ready = _allocate_barriers(STAGES, 1)
    v_ready = _allocate_barriers(STAGES, 1)
    k1_empty = _allocate_barriers(STAGES, 1)
    k2_empty = _allocate_barriers(STAGES, 1)
    v_empty = _allocate_barriers(STAGES, 2)
    handed_over = _allocate_barriers(1, 1)
    # Make the initialised barriers visible to the copy engine, which arrives at them.
    fence_async_shared()

    gl.warp_specialize(
        [
            (_consume, (
                q_bufs, k1_bufs, v_bufs, q_ready, k1_ready, k1_empty, v_ready, v_empty,
                o2_buf, handed_over, p_out, p_o2, p_lse, p_lam, stride_lt, stride_o,
                first_query, num_queries, num_keys, num_full, num_blocks, scale_log2,
                0, CAUSAL, INFERENCE,
                BLOCK_QUERIES, BLOCK_KEYS, HEAD_DIM, VALUE_DIM, STAGES,
            )),
            (_consume, (
                q_bufs, k2_bufs, v_bufs, q_ready, k2_ready, k2_empty, v_ready, v_empty,
                o2_buf, handed_over, p_out, p_o2, p_lse, p_lam, stride_lt, stride_o,
                first_query, num_queries, num_keys, num_full, num_blocks, scale_log2,
                1, CAUSAL, INFERENCE,
                BLOCK_QUERIES, BLOCK_KEYS, HEAD_DIM, VALUE_DIM, STAGES,
            )),
            (_produce, (
                (q_desc, k_desc, v_desc), q_bufs, k1_bufs, k2_bufs, v_bufs,
                q_ready, k1_ready, k2_ready, v_ready, k1_empty, k2_empty, v_empty,
                i_b, i_h, i_kv, first_query, num_blocks, SHARED_KEYS, BLOCK_KEYS, STAGES,
            )),
        ],
        [4, 1],
        [CONSUMER_REGISTERS, PRODUCER_REGISTERS],
    )  # fmt: skip


def forward(
    q: Tensor, k: Tensor, v: Tensor, lam: Tensor, *, scale: float, causal: bool = True,
    inference: bool = False,
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    r"""Output, O2 = A2 V and the logarithms of the softmax sums.

    .. math:: O = A_1 V - \lambda\,A_2 V

    Source: arXiv:2410.05258v2, Eq. (1).

    Arguments as in :func:`diffattn.ops.backends.custom_op.hopper_diff_attention`. O and O2 are
    ``[B, T, H, Dv]`` in the dtype of ``q``. The logarithms, float32 ``[B, H, 2, T]``, are in base
    2, +inf for a row without keys. With ``inference`` the last two are empty.
    """
    batch, num_queries, num_heads, _, head_dim = q.shape
    num_keys, num_kv_heads, value_dim = v.shape[1:]
    shared_keys = k.ndim == 4
    constants = kernel_constants(
        num_heads // num_kv_heads, head_dim, value_dim, causal, shared_keys, inference
    )
    descriptors, results, lam = prepare(q, k, v, lam, constants["BLOCK_KEYS"], inference)
    grid = (triton.cdiv(num_queries, BLOCK_QUERIES), num_heads, batch)
    _diff_attention_fwd_hopper_kernel[grid](
        *descriptors, *results, lam, *lam.stride(),
        num_queries, num_keys, num_heads, scale * LOG2_E,
        **constants, num_warps=4, maxnreg=MAX_REGISTERS, **FP_FUSION,
    )  # fmt: skip
    return results


def prepare(
    q: Tensor, k: Tensor, v: Tensor, lam: Tensor, block_keys: int, inference: bool
) -> tuple[list[TensorDescriptor], tuple[Tensor, Tensor, Tensor], Tensor]:
    """Descriptors of Q, K and V; memory for O, O2 and log row sums; and λ ``[B, T, H]``."""
    batch, num_queries, num_heads, _, head_dim = q.shape
    value_dim = v.shape[-1]
    shapes = block_shapes(head_dim, value_dim, block_keys)
    keys = k.unsqueeze(3) if k.ndim == 4 else k  # [B, S, Hkv, 1 or 2, D]
    tensors = {"q": q, "k": keys, "v": v}
    descriptors = [_descriptor(x, shapes[name]) for name, x in tensors.items()]
    out = torch.empty(batch, num_queries, num_heads, value_dim, dtype=q.dtype, device=q.device)
    out_2 = out.new_empty(0) if inference else torch.empty_like(out)
    sums = (0,) if inference else (batch, num_heads, 2, num_queries)
    lse = torch.empty(sums, dtype=torch.float32, device=q.device)
    return descriptors, (out, out_2, lse), lam.expand(batch, num_queries, num_heads)


def _descriptor(x: Tensor, block_shape: list[int]) -> TensorDescriptor:
    """A descriptor of ``x``, or of a copy if its address or strides are no multiple of 16 bytes."""
    per_16_bytes = 16 // x.element_size()
    fits = x.stride(-1) == 1 and x.data_ptr() % 16 == 0
    for size, stride in zip(x.shape[:-1], x.stride()[:-1], strict=True):
        fits = fits and (size == 1 or (stride > 0 and stride % per_16_bytes == 0))
    if not fits:
        x = x.clone(memory_format=torch.contiguous_format)
    # The stride of an axis of size 1 is never used, but must be valid.
    strides = [
        x.shape[-1] if size == 1 and axis < x.ndim - 1 else stride
        for axis, (size, stride) in enumerate(zip(x.shape, x.stride(), strict=True))
    ]
    return TensorDescriptor(
        x, list(x.shape), strides, block_shape, shared_layout(block_shape, _GL_DTYPES[x.dtype])
    )


def kernel_constants(
    group: int, head_dim: int, value_dim: int, causal: bool, shared_keys: bool,
    inference: bool = False,
) -> dict[str, int]:  # fmt: skip
    """The compile-time constants of the kernel."""
    block_keys, stages = TILES[head_dim]
    return {
        "GROUP": group, "HEAD_DIM": head_dim, "VALUE_DIM": value_dim, "CAUSAL": causal,
        "SHARED_KEYS": shared_keys, "INFERENCE": inference, "BLOCK_QUERIES": BLOCK_QUERIES,
        "BLOCK_KEYS": block_keys, "STAGES": stages, "CONSUMER_REGISTERS": _CONSUMER_REGISTERS,
        "PRODUCER_REGISTERS": _PRODUCER_REGISTERS,
    }  # fmt: skip


def block_shapes(head_dim: int, value_dim: int, block_keys: int) -> dict[str, list[int]]:
    """Tiles of q ``[B, T, H, 2, D]``, k ``[B, S, Hkv, 2, D]`` and v ``[B, S, Hkv, Dv]``."""
    return {
        "q": [1, BLOCK_QUERIES, 1, 1, head_dim],
        "k": [1, block_keys, 1, 1, head_dim],
        "v": [1, block_keys, 1, value_dim],
    }


def shared_layout(block_shape: list[int], dtype: gl.dtype) -> gl.NVMMASharedLayout:
    """The layout of a tile in shared memory."""
    return gl.NVMMASharedLayout.get_default_for(block_shape, dtype)
