"""Forward for Hopper that computes map 2, then map 1, of 128 or 192 queries. Compiled, never run.

In :mod:`~diffattn.ops.hopper.forward` each warpgroup computes one map of the same 64 queries. Here
each computes both maps of 64 different queries, in one loop over the keys per map. So a tile of K
or V serves two or three times as many queries. Warpgroups take turns at the tensor cores. Keys of a
step are copied before the values of the previous step. The longest programs start first. O2 is kept
in global memory, where it is saved anyway. ``docs/records/hopper_forward.md`` has the counts.

Barriers are as in that module, with one arrival per warpgroup for K and V. ``turns`` has a barrier
per warpgroup, which the previous warpgroup completes after it has issued its products.
"""

import triton
from torch import Tensor
from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import fence_async_shared, mbarrier

from diffattn.ops.hopper.forward import (
    BLOCK_QUERIES,
    _allocate,
    _allocate_barriers,
    _attend,
    _load_tile,
    prepare,
)
from diffattn.ops.triton.configs import FP_FUSION
from diffattn.ops.triton.launch import LOG2_E

BLOCK_KEYS = 64
MAX_REGISTERS = {64: 128, 128: 168}
"""head_dim -> registers per thread at launch, for 16 or 12 warps on a multiprocessor."""
L2_BYTES = 32 * 2**20
"""Most bytes of keys and values of the heads whose programs start together, to stay in L2."""


@gluon.jit
def _produce(
    produced, GROUPS: gl.constexpr, SHARED_KEYS: gl.constexpr, BLOCK_KEYS: gl.constexpr,
    STAGES: gl.constexpr,
):  # fmt: skip
    """The copying warp: Q of both maps, then K2 with all of V, then K1 with all of V."""
    descriptors, shared, i_b, i_h, i_kv, first_query, num_blocks = produced
    q_desc, k_desc, v_desc = descriptors
    q_bufs, k_bufs, v_bufs, q_ready, k_ready, v_ready, k_empty, v_empty, _ = shared
    block_queries: gl.constexpr = q_desc.block_shape[1]
    for i in gl.static_range(2 * GROUPS):
        mbarrier.expect(q_ready.index(i), q_desc.block_type.nbytes)
        start = first_query + i // 2 * block_queries
        _load_tile(q_desc, [i_b, start, i_h, i % 2, 0], q_ready.index(i), q_bufs.index(i))
    for step in range(2 * num_blocks + 1):
        if step < 2 * num_blocks:
            slot = step % STAGES
            k_map = 0 if SHARED_KEYS else 1 - step // num_blocks
            # A new barrier counts as having completed phase 1: the first round does not wait.
            mbarrier.wait(k_empty.index(slot), (step // STAGES & 1) ^ 1)
            mbarrier.expect(k_ready.index(slot), k_desc.block_type.nbytes)
            corner = [i_b, step % num_blocks * BLOCK_KEYS, i_kv, k_map, 0]
            _load_tile(k_desc, corner, k_ready.index(slot), k_bufs.index(slot))
        if step > 0:
            before = step - 1
            slot = before % STAGES
            mbarrier.wait(v_empty.index(slot), (before // STAGES & 1) ^ 1)
            mbarrier.expect(v_ready.index(slot), v_desc.block_type.nbytes)
            corner = [i_b, before % num_blocks * BLOCK_KEYS, i_kv, 0]
            _load_tile(v_desc, corner, v_ready.index(slot), v_bufs.index(slot))


@gluon.jit
def _consume(
    shared, pointers, sizes, scale_log2, GROUP: gl.constexpr, GROUPS: gl.constexpr,
    CAUSAL: gl.constexpr, INFERENCE: gl.constexpr, BLOCK_KEYS: gl.constexpr, STAGES: gl.constexpr,
):  # fmt: skip
    """One multiplying warpgroup: both maps of its queries.

    Pointers point to this batch row and head. In inference O2 is kept in the memory of the output.
    """
    stride_lt, stride_o, first_query, num_queries, num_keys, num_blocks = sizes
    q_bufs, k_bufs, v_bufs, q_ready, k_ready, v_ready, k_empty, v_empty, turns = shared
    block_queries: gl.constexpr = q_bufs.shape[2]
    value_dim: gl.constexpr = v_bufs.shape[4]
    s_layout: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, BLOCK_KEYS, 16])
    o_layout: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, value_dim, 16])

    first_query = first_query + GROUP * block_queries
    s_queries = first_query + gl.arange(0, block_queries, layout=gl.SliceLayout(1, s_layout))
    b_last = s_queries * 0 + num_keys
    seen_by_all = num_keys
    if CAUSAL:  # bottom-right aligned
        b_last = gl.minimum(num_keys, s_queries + num_keys - num_queries + 1)
        seen_by_all = gl.minimum(num_keys, first_query + num_keys - num_queries + 1)
    # At most the blocks that are copied.
    num_full = gl.minimum(gl.maximum(seen_by_all, 0) // BLOCK_KEYS, num_blocks)

    p_out, p_o2, p_lse, p_lam = pointers
    p_out += first_query.to(gl.int64) * stride_o
    p_o2 += first_query.to(gl.int64) * stride_o
    p_lam += first_query.to(gl.int64) * stride_lt
    values = gl.arange(0, value_dim, layout=gl.SliceLayout(0, o_layout))[None, :]
    for i in range(2):
        slot = 2 * GROUP + 1 - i
        mbarrier.wait(q_ready.index(slot), 0)
        b_acc, b_sum, b_lse = _attend(
            q_bufs.index(slot), k_bufs, v_bufs, k_ready, k_empty, v_ready, v_empty,
            b_last, num_full, num_blocks, scale_log2, BLOCK_KEYS, STAGES, s_layout, o_layout,
            i * num_blocks, turns, GROUP, GROUPS,
        )  # fmt: skip
        if not INFERENCE:
            p_sums = p_lse + (1 - i) * num_queries + s_queries
            gl.store(p_sums, b_lse, mask=s_queries < num_queries)
        b_out = b_acc * gl.convert_layout(1.0 / b_sum, gl.SliceLayout(1, o_layout))[:, None]
        # The shift gives 0. As it depends on the pass, the compiler cannot compute the addresses
        # before the loops and keep them in registers, of which there are too few.
        rows = gl.arange(0, block_queries, layout=gl.SliceLayout(1, o_layout))
        rows += num_queries + i >> 31
        mask = rows < num_queries - first_query
        p_kept = ((p_out if INFERENCE else p_o2) + rows * stride_o)[:, None] + values
        if i == 0:
            gl.store(p_kept, b_out.to(q_bufs.dtype), mask=mask[:, None])
        else:
            b_lam = gl.load(p_lam + rows * stride_lt, mask=mask, other=0.0)
            # Each thread reads only numbers that it has written, so no barrier is needed.
            b_o2 = gl.load(p_kept, mask=mask[:, None], other=0.0).to(gl.float32)
            b_out = b_out - b_lam[:, None] * b_o2
            p_row = (p_out + rows * stride_o)[:, None] + values
            gl.store(p_row, b_out.to(q_bufs.dtype), mask=mask[:, None])


@gluon.jit
def _diff_attention_fwd_by_map_kernel(
    q_desc, k_desc, v_desc, p_out, p_o2, p_lse, p_lam, stride_lb, stride_lt, stride_lh,
    num_queries, num_keys, num_heads, all_heads, section, scale_log2,
    GROUP: gl.constexpr, VALUE_DIM: gl.constexpr, CAUSAL: gl.constexpr,
    SHARED_KEYS: gl.constexpr, INFERENCE: gl.constexpr, BLOCK_QUERIES: gl.constexpr,
    BLOCK_KEYS: gl.constexpr, GROUPS: gl.constexpr, STAGES: gl.constexpr,
    CONSUMER_REGISTERS: gl.constexpr, PRODUCER_REGISTERS: gl.constexpr,
):  # fmt: skip
    """Results of ``_diff_attention_fwd_hopper_kernel``, for ``GROUPS`` blocks of queries.

    Grid ``(query blocks · H · B,)``: ``section`` heads at a time, and the longest programs first.
    """
    tile: gl.constexpr = GROUPS * BLOCK_QUERIES
    query_blocks = gl.cdiv(num_queries, tile)
    begin = gl.program_id(0) // (section * query_blocks) * section
    within = gl.program_id(0) - begin * query_blocks
    heads = gl.minimum(section, all_heads - begin)
    head = begin + within % heads
    first_query = (query_blocks - 1 - within // heads) * tile
    i_b = head // num_heads
    i_h = head % num_heads
    offset = (i_b.to(gl.int64) * num_queries * num_heads + i_h) * VALUE_DIM
    p_lse += head.to(gl.int64) * 2 * num_queries
    p_lam += i_b.to(gl.int64) * stride_lb + i_h.to(gl.int64) * stride_lh
    pointers = (p_out + offset, p_o2 + offset, p_lse, p_lam)
    seen = num_keys
    if CAUSAL:
        seen = gl.minimum(num_keys, first_query + tile + num_keys - num_queries)
    # A block of queries that sees no key still reads block 0, hidden, to need no special case.
    num_blocks = gl.maximum(gl.cdiv(gl.maximum(seen, 0), BLOCK_KEYS), 1)

    shared = (
        _allocate(q_desc, 2 * GROUPS), _allocate(k_desc, STAGES), _allocate(v_desc, STAGES),
        _allocate_barriers(2 * GROUPS, 1), _allocate_barriers(STAGES, 1),
        _allocate_barriers(STAGES, 1), _allocate_barriers(STAGES, GROUPS),
        _allocate_barriers(STAGES, GROUPS), _allocate_barriers(GROUPS, 1),
    )  # fmt: skip
    # Make the initialised barriers visible to the copy engine, which arrives at them.
    fence_async_shared()
    stride_o = num_heads * VALUE_DIM
    sizes = (stride_lt, stride_o, first_query, num_queries, num_keys, num_blocks)
    produced = ((q_desc, k_desc, v_desc), shared, i_b, i_h, i_h // GROUP, first_query, num_blocks)
    _run_warps(
        shared, pointers, sizes, produced, scale_log2, GROUPS, CAUSAL, SHARED_KEYS, INFERENCE,
        BLOCK_KEYS, STAGES, CONSUMER_REGISTERS, PRODUCER_REGISTERS,
    )  # fmt: skip


@gluon.jit
def _run_warps(
    shared, pointers, sizes, produced, scale_log2, GROUPS: gl.constexpr, CAUSAL: gl.constexpr,
    SHARED_KEYS: gl.constexpr, INFERENCE: gl.constexpr, BLOCK_KEYS: gl.constexpr,
    STAGES: gl.constexpr, CONSUMER_REGISTERS: gl.constexpr, PRODUCER_REGISTERS: gl.constexpr,
):  # fmt: skip
    """Run two or three multiplying warpgroups, and a copying warp."""
    if GROUPS == 2:
        gl.warp_specialize([
            (_consume, (shared, pointers, sizes, scale_log2,
                        0, GROUPS, CAUSAL, INFERENCE, BLOCK_KEYS, STAGES)),
            (_consume, (shared, pointers, sizes, scale_log2,
                        1, GROUPS, CAUSAL, INFERENCE, BLOCK_KEYS, STAGES)),
            (_produce, (produced, GROUPS, SHARED_KEYS, BLOCK_KEYS, STAGES)),
        ], [4, 1], [CONSUMER_REGISTERS, PRODUCER_REGISTERS])  # fmt: skip
    else:
        gl.warp_specialize([
            (_consume, (shared, pointers, sizes, scale_log2,
                        0, GROUPS, CAUSAL, INFERENCE, BLOCK_KEYS, STAGES)),
            (_consume, (shared, pointers, sizes, scale_log2,
                        1, GROUPS, CAUSAL, INFERENCE, BLOCK_KEYS, STAGES)),
            (_consume, (shared, pointers, sizes, scale_log2,
                        2, GROUPS, CAUSAL, INFERENCE, BLOCK_KEYS, STAGES)),
            (_produce, (produced, GROUPS, SHARED_KEYS, BLOCK_KEYS, STAGES)),
        ], [4, 4, 1], [CONSUMER_REGISTERS, CONSUMER_REGISTERS, PRODUCER_REGISTERS])  # fmt: skip


def forward(
    q: Tensor, k: Tensor, v: Tensor, lam: Tensor, *, scale: float, causal: bool = True,
    inference: bool = False,
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    r"""Output, O2 = A2 V and the logarithms of the softmax sums.

    Source: arXiv:2410.05258v2, Eq. (1).

    Arguments and results as in :func:`diffattn.ops.hopper.forward.forward`.
    """
    batch, num_queries, num_heads, _, head_dim = q.shape
    num_keys, num_kv_heads, value_dim = v.shape[1:]
    group, shared_keys = num_heads // num_kv_heads, k.ndim == 4
    constants = kernel_constants(group, head_dim, value_dim, causal, shared_keys, inference)
    descriptors, results, lam = prepare(q, k, v, lam, BLOCK_KEYS, inference)
    all_heads = batch * num_heads
    query_blocks = triton.cdiv(num_queries, constants["GROUPS"] * BLOCK_QUERIES)
    head_bytes = (k[0].numel() + v[0].numel()) // num_kv_heads * k.element_size()
    total = batch * num_kv_heads
    parts = triton.cdiv(total, max(L2_BYTES // head_bytes, 1))
    section = triton.cdiv(total, parts) * group
    _diff_attention_fwd_by_map_kernel[(query_blocks * all_heads, 1, 1)](
        *descriptors, *results, lam, *lam.stride(),
        num_queries, num_keys, num_heads, all_heads, section, scale * LOG2_E,
        **constants, num_warps=4, maxnreg=MAX_REGISTERS[head_dim], **FP_FUSION,
    )  # fmt: skip
    return results


def kernel_constants(
    group: int, head_dim: int, value_dim: int, causal: bool, shared_keys: bool,
    inference: bool = False,
) -> dict[str, int]:  # fmt: skip
    """The compile-time constants of the kernel."""
    wide = head_dim > 64
    return {
        "GROUP": group, "VALUE_DIM": value_dim, "CAUSAL": causal, "SHARED_KEYS": shared_keys,
        "INFERENCE": inference, "BLOCK_QUERIES": BLOCK_QUERIES, "BLOCK_KEYS": BLOCK_KEYS,
        "GROUPS": 2 if wide else 3, "STAGES": 3 if wide else 4,
        "CONSUMER_REGISTERS": 240 if wide else 160, "PRODUCER_REGISTERS": 24,
    }  # fmt: skip
