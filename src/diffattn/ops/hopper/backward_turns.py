r"""Turns of the Hopper backward: in a turn a warpgroup adds the terms of a tile to its sums.

If a warpgroup holds all sums of its rows (:func:`_fold`), weights and dS stay in registers, from
which the next products read them. dQ needs the keys of both warpgroups, so dS is also stored in
shared memory: warpgroup m multiplies dS_m of both warpgroups by their keys.

At d 128 V1's dK1, dK2 and dV need twice the registers of a warpgroup. Then both warpgroups have the
same 64 keys (:func:`_fold_exchanging`). They divide scores by queries: each computes S, dP,
A1 - λ A2 and dS of one of two tiles. They divide sums by map and channel: warpgroup m adds to dK_m
and to half m of dV. Each passes A1 - λ A2 and the dS of the other's map on, through shared memory
and in the inputs' dtype. No product is computed twice.
"""

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import (
    fence_async_shared,
    mbarrier,
    warpgroup_mma,
    warpgroup_mma_wait,
)

from diffattn.ops.hopper.forward import _sync_warpgroup


@gluon.jit
def _number(
    numbers_bufs, slot, N: gl.constexpr, BY_KEYS: gl.constexpr, I_GROUP: gl.constexpr,
    NUM_NUMBERS: gl.constexpr, LENGTH: gl.constexpr, LAYOUT: gl.constexpr,
):  # fmt: skip
    """Number ``N`` of each query in a tile; queries are its columns if rows are keys."""
    axis: gl.constexpr = 0 if BY_KEYS else 1
    first = slot if BY_KEYS else I_GROUP
    b_number = numbers_bufs.index(first * NUM_NUMBERS + N).reshape([LENGTH])
    return gl.expand_dims(b_number.load(gl.SliceLayout(axis, LAYOUT)), axis)


@gluon.jit
def _weights(b_s, b_lse, m_seen, scale_log2):
    """A of a tile; a query without keys has ``b_lse`` +inf and weights 0."""
    return gl.exp2(gl.where(m_seen, b_s * scale_log2 - b_lse, float("-inf")))


@gluon.jit
def _seen(b_own, first, BLOCK: gl.constexpr, BY_KEYS: gl.constexpr, LAYOUT: gl.constexpr):
    """Mask of a tile whose first column is ``first``: which queries see which keys."""
    columns = first + gl.expand_dims(gl.arange(0, BLOCK, layout=gl.SliceLayout(0, LAYOUT)), 0)
    if BY_KEYS:
        m_seen = b_own <= columns
    else:
        m_seen = columns < b_own
    return m_seen


@gluon.jit
def _own_tiles(own_bufs, i_rows, WITH_X: gl.constexpr, OWN_MAPS: gl.constexpr):
    """K or Q of both maps for 64 rows, and V or dO."""
    x_bufs, v_bufs = own_bufs
    rows: gl.constexpr = x_bufs.shape[2]
    own_1 = x_bufs.index(i_rows * OWN_MAPS).reshape([rows, x_bufs.shape[5]])
    own_2 = x_bufs.index(i_rows * OWN_MAPS + OWN_MAPS - 1).reshape([rows, x_bufs.shape[5]])
    own_v = own_1
    if WITH_X:
        own_v = v_bufs.index(i_rows).reshape([rows, v_bufs.shape[4]])
    return own_1, own_2, own_v


@gluon.jit
def _tile(ring_bufs, slot, TILE_MAPS: gl.constexpr):
    """Q or K of both maps for a tile, and dO or V."""
    x_bufs, v_bufs, _ = ring_bufs
    block: gl.constexpr = x_bufs.shape[2]
    b_y1 = x_bufs.index(slot * TILE_MAPS).reshape([block, x_bufs.shape[5]])
    b_y2 = x_bufs.index(slot * TILE_MAPS + TILE_MAPS - 1).reshape([block, x_bufs.shape[5]])
    return b_y1, b_y2, v_bufs.index(slot).reshape([block, v_bufs.shape[4]])


@gluon.jit
def _scores(own_tiles, b_y1, b_y2, b_u, WITH_X: gl.constexpr, LAYOUT: gl.constexpr):
    """S of both maps of a tile and, for dK or dQ, dP. The products are issued, not complete."""
    rows: gl.constexpr = own_tiles[0].shape[0]
    columns: gl.constexpr = b_u.shape[0]
    b_zeros = gl.zeros([rows, columns], gl.float32, layout=LAYOUT)
    b_s1 = warpgroup_mma(own_tiles[0], b_y1.permute((1, 0)), b_zeros, use_acc=False, is_async=True)
    b_s2 = warpgroup_mma(own_tiles[1], b_y2.permute((1, 0)), b_zeros, use_acc=False, is_async=True)
    b_dp = b_zeros
    if WITH_X:
        b_u = b_u.permute((1, 0))
        b_dp = warpgroup_mma(own_tiles[2], b_u, b_zeros, use_acc=False, is_async=True)
    return b_s1, b_s2, b_dp


@gluon.jit
def _both_weights(
    b_s1, b_s2, numbers_bufs, slot, m_seen, scale_log2, I_GROUP: gl.constexpr,
    BY_KEYS: gl.constexpr, WITH_X: gl.constexpr, NUM_NUMBERS: gl.constexpr,
    LENGTH: gl.constexpr, LAYOUT: gl.constexpr,
):  # fmt: skip
    """A1, and λ A2 if rows are keys, else A2. The product dP may still be running."""
    # Products finish in the order of issue.
    b_s1 = warpgroup_mma_wait(num_outstanding=WITH_X + 1, deps=(b_s1,))
    b_lse1 = _number(numbers_bufs, slot, 0, BY_KEYS, I_GROUP, NUM_NUMBERS, LENGTH, LAYOUT)
    b_p1 = _weights(b_s1, b_lse1, m_seen, scale_log2)
    b_s2 = warpgroup_mma_wait(num_outstanding=WITH_X + 0, deps=(b_s2,))
    b_lse2 = _number(numbers_bufs, slot, 1, BY_KEYS, I_GROUP, NUM_NUMBERS, LENGTH, LAYOUT)
    b_p2 = _weights(b_s2, b_lse2, m_seen, scale_log2)
    if BY_KEYS:  # if rows are queries, λ multiplies the finished row
        b_p2 = b_p2 * _number(numbers_bufs, slot, 4, True, 0, NUM_NUMBERS, LENGTH, LAYOUT)
    return b_p1, b_p2


@gluon.jit
def _fold(
    b_x1, b_x2, b_v, p_dq, own_bufs, b_own, ring_bufs, given_bufs, ready, empty, given,
    begin, end, offset, scale_log2,
    I_GROUP: gl.constexpr, BY_KEYS: gl.constexpr, WITH_X: gl.constexpr, WITH_V: gl.constexpr,
    WITH_Q: gl.constexpr, OWN_MAPS: gl.constexpr, TILE_MAPS: gl.constexpr, BLOCK: gl.constexpr,
    STAGES: gl.constexpr, NUM_NUMBERS: gl.constexpr, LAYOUT: gl.constexpr, X_SUM: gl.constexpr,
    V_SUM: gl.constexpr,
):  # fmt: skip
    """Add the terms of tiles [begin, end) of one head; tile j is in turn ``j + offset``."""
    X_LAYOUT: gl.constexpr = gl.DotOperandLayout(0, X_SUM, k_width=2)
    V_LAYOUT: gl.constexpr = gl.DotOperandLayout(0, V_SUM, k_width=2)
    numbers_bufs = ring_bufs[2]
    own_tiles = _own_tiles(own_bufs, I_GROUP, WITH_X, OWN_MAPS)
    length: gl.constexpr = BLOCK if BY_KEYS else b_x1.shape[0]
    tile_sums: gl.constexpr = 2 * b_x1.shape[1] * BLOCK
    if WITH_Q:
        p_dq += begin * tile_sums
    for j in range(begin, end):
        i = j + offset
        slot = i % STAGES
        mbarrier.wait(ready.index(slot), i // STAGES & 1)
        b_y1, b_y2, b_u = _tile(ring_bufs, slot, TILE_MAPS)
        b_s1, b_s2, b_dp = _scores(own_tiles, b_y1, b_y2, b_u, WITH_X, LAYOUT)
        m_seen = _seen(b_own[:, None], j * BLOCK, BLOCK, BY_KEYS, LAYOUT)
        b_p1, b_p2 = _both_weights(
            b_s1, b_s2, numbers_bufs, slot, m_seen, scale_log2, I_GROUP, BY_KEYS, WITH_X,
            NUM_NUMBERS, length, LAYOUT,
        )  # fmt: skip
        if WITH_V:
            b_p = gl.convert_layout((b_p1 - b_p2).to(b_u.dtype), V_LAYOUT)
            b_v = warpgroup_mma(b_p, b_u, b_v, is_async=True)
        if WITH_X:
            b_dp = warpgroup_mma_wait(num_outstanding=WITH_V + 0, deps=(b_dp,))
            b_delta1 = _number(numbers_bufs, slot, 2, BY_KEYS, I_GROUP, NUM_NUMBERS, length, LAYOUT)
            b_ds1 = b_p1 * (b_dp - b_delta1)
            b_ds1 = _put(b_ds1, given_bufs, 4 * slot + I_GROUP, WITH_Q, X_LAYOUT)
            b_x1 = warpgroup_mma(b_ds1, b_y1, b_x1, is_async=True)
            b_delta2 = _number(numbers_bufs, slot, 3, BY_KEYS, I_GROUP, NUM_NUMBERS, length, LAYOUT)
            b_ds2 = b_p2 * (b_delta2 - b_dp)
            b_ds2 = _put(b_ds2, given_bufs, 4 * slot + 2 + I_GROUP, WITH_Q, X_LAYOUT)
            if OWN_MAPS == 1:
                b_x1 = warpgroup_mma(b_ds2, b_y2, b_x1, is_async=True)
            else:
                b_x2 = warpgroup_mma(b_ds2, b_y2, b_x2, is_async=True)
            if WITH_Q:
                _announce(given.index(slot))
                mbarrier.wait(given.index(slot), i // STAGES & 1)
                b_dq = _multiply_keys(own_bufs[0], given_bufs, slot, I_GROUP, OWN_MAPS, LAYOUT)
            if OWN_MAPS == 2:
                b_x2 = warpgroup_mma_wait(num_outstanding=0, deps=(b_x2,))
            # Until here the products also read dS in registers.
            b_x1, b_ds1, b_ds2 = warpgroup_mma_wait(num_outstanding=0, deps=(b_x1, b_ds1, b_ds2))
        if WITH_V:
            b_v, b_p = warpgroup_mma_wait(num_outstanding=0, deps=(b_v, b_p))
        if WITH_Q:
            b_dq = warpgroup_mma_wait(num_outstanding=0, deps=(b_dq,))
            _add(p_dq, b_dq, I_GROUP, LAYOUT)
            p_dq += tile_sums
        mbarrier.arrive(empty.index(slot), count=1)
    return b_x1, b_x2, b_v


@gluon.jit
def _put(b_ds, bufs, i, WITH_Q: gl.constexpr, LAYOUT: gl.constexpr):
    """dS as an operand in registers; for dQ it is also stored in shared memory."""
    b_ds = b_ds.to(bufs.dtype)
    if WITH_Q:
        bufs.index(i).store(b_ds)
    return gl.convert_layout(b_ds, LAYOUT)


@gluon.jit
def _multiply_keys(
    own_x_bufs, given_bufs, slot, I_GROUP: gl.constexpr, OWN_MAPS: gl.constexpr,
    LAYOUT: gl.constexpr,
):  # fmt: skip
    """Issue dQ of map m, transposed, from the keys of both warpgroups, in warpgroup m."""
    rows: gl.constexpr = own_x_bufs.shape[2]
    head_dim: gl.constexpr = own_x_bufs.shape[5]
    block: gl.constexpr = given_bufs.shape[2]
    b_dq = gl.zeros([head_dim, block], gl.float32, layout=LAYOUT)
    for i in gl.static_range(2):
        keys = own_x_bufs.index(i * OWN_MAPS + (I_GROUP if OWN_MAPS == 2 else 0))
        b_ds = given_bufs.index(4 * slot + 2 * I_GROUP + i)
        b_keys = keys.reshape([rows, head_dim]).permute((1, 0))
        b_dq = warpgroup_mma(b_keys, b_ds, b_dq, use_acc=i > 0, is_async=True)
    return b_dq


@gluon.jit
def _add(p_dq, b_dq, I_GROUP: gl.constexpr, LAYOUT: gl.constexpr):
    """Add to this warpgroup's map in the sums ``[2, D, BLOCK]`` of a tile, by atomics."""
    head_dim: gl.constexpr = b_dq.shape[0]
    block: gl.constexpr = b_dq.shape[1]
    channels = I_GROUP * head_dim + gl.arange(0, head_dim, layout=gl.SliceLayout(1, LAYOUT))
    queries = gl.arange(0, block, layout=gl.SliceLayout(0, LAYOUT))
    gl.atomic_add(p_dq + channels[:, None] * block + queries[None, :], b_dq, sem="relaxed")


@gluon.jit
def _give(buf, barrier, b_tile):
    """Store a tile in shared memory, for products of the other warpgroup."""
    buf.store(b_tile)
    _announce(barrier)


@gluon.jit
def _announce(barrier):
    """Arrive at a barrier after all threads of this warpgroup have stored their tile."""
    fence_async_shared()
    # All threads must have stored before one of them arrives.
    _sync_warpgroup()
    mbarrier.arrive(barrier, count=1)


@gluon.jit
def _fold_exchanging(
    b_x, b_v, own_bufs, b_own, ring_bufs, given_bufs, ready, empty, given,
    begin, end, offset, num_queries, scale_log2,
    I_GROUP: gl.constexpr, BLOCK: gl.constexpr, STAGES: gl.constexpr, VALUE_DIM: gl.constexpr,
    NUM_NUMBERS: gl.constexpr, LAYOUT: gl.constexpr, X_SUM: gl.constexpr, V_SUM: gl.constexpr,
):  # fmt: skip
    """As :func:`_fold`, for this warpgroup's part of the sums, with two tiles per turn."""
    x_bufs, v_bufs, numbers_bufs = ring_bufs
    dtype: gl.constexpr = x_bufs.dtype
    head_dim: gl.constexpr = b_x.shape[1]
    width: gl.constexpr = b_v.shape[1]
    for j in range(begin, end, 2):
        i = j + offset
        near = i % STAGES + I_GROUP  # the slots of both tiles
        far = i % STAGES + 1 - I_GROUP
        mbarrier.wait(ready.index(near), i // STAGES & 1)
        # It is 0. The compiler cannot compute addresses before the loop and keep them in registers.
        zero = i + num_queries >> 31
        own_tiles = _own_tiles(own_bufs, zero, True, 2)
        b_q1, b_q2, b_do = _tile(ring_bufs, near, 2)
        b_s1, b_s2, b_dp = _scores(own_tiles, b_q1, b_q2, b_do, True, LAYOUT)
        m_seen = _seen(b_own[:, None], (j + I_GROUP) * BLOCK, BLOCK, True, LAYOUT)
        b_p1, b_p2 = _both_weights(
            b_s1, b_s2, numbers_bufs, near, m_seen, scale_log2, 0, True, True, NUM_NUMBERS, BLOCK,
            LAYOUT,
        )  # fmt: skip
        b_p = (b_p1 - b_p2).to(dtype)
        before = i + STAGES - 2  # Both warpgroups must have read what the last turn exchanged.
        mbarrier.wait(empty.index(before % STAGES), (before // STAGES & 1) ^ 1)
        _give(given_bufs.index(I_GROUP), given.index(I_GROUP), b_p)
        b_p = gl.convert_layout(b_p, gl.DotOperandLayout(0, V_SUM, k_width=2))
        b_do = b_do.slice(I_GROUP * width, width, 1)
        b_v = warpgroup_mma(b_p, b_do, b_v, is_async=True)
        b_dp = warpgroup_mma_wait(num_outstanding=1, deps=(b_dp,))
        b_delta1 = _number(numbers_bufs, near, 2, True, 0, NUM_NUMBERS, BLOCK, LAYOUT)
        b_ds1 = (b_p1 * (b_dp - b_delta1)).to(dtype)
        b_delta2 = _number(numbers_bufs, near, 3, True, 0, NUM_NUMBERS, BLOCK, LAYOUT)
        b_ds2 = (b_p2 * (b_delta2 - b_dp)).to(dtype)
        b_kept, b_given = (b_ds2, b_ds1) if I_GROUP else (b_ds1, b_ds2)
        _give(given_bufs.index(2 + I_GROUP), given.index(2 + I_GROUP), b_given)
        b_kept = gl.convert_layout(b_kept, gl.DotOperandLayout(0, X_SUM, k_width=2))
        b_x = warpgroup_mma(b_kept, b_q2 if I_GROUP else b_q1, b_x, is_async=True)
        # The copy is complete by now, but a reader must have waited for its barrier.
        mbarrier.wait(ready.index(far), i // STAGES & 1)
        mbarrier.wait(given.index(1 - I_GROUP), i // 2 & 1)
        b_do = v_bufs.index(far).reshape([BLOCK, VALUE_DIM]).slice(I_GROUP * width, width, 1)
        b_v = warpgroup_mma(given_bufs.index(1 - I_GROUP), b_do, b_v, is_async=True)
        mbarrier.wait(given.index(3 - I_GROUP), i // 2 & 1)
        b_q = x_bufs.index(2 * far + I_GROUP).reshape([BLOCK, head_dim])
        b_x = warpgroup_mma(given_bufs.index(3 - I_GROUP), b_q, b_x, is_async=True)
        b_x, b_v, b_p, b_kept = warpgroup_mma_wait(0, deps=(b_x, b_v, b_p, b_kept))
        mbarrier.arrive(empty.index(near), count=1)
        mbarrier.arrive(empty.index(far), count=1)
    return b_x, b_v
