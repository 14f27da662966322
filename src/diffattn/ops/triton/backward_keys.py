"""The backward kernel of differential attention with a program per block of keys: dK, dV, dQ.

A program loops over the queries that see its block of keys. Both maps share dP = dO Vᵀ and dV;
softmax attention has one map. If the kernel also computes dQ, one pass is enough: every program
adds to dQ in float32, in an order that varies. Source: arXiv:2410.05258v2, Appendix G; one pass as
in arXiv:2307.08691, Section 3.1.
"""

import triton
import triton.language as tl

from diffattn.ops.triton.tiles import (
    add_tile,
    keys_of_queries,
    load_numbers,
    load_real,
    load_tile,
    load_tiles,
    query_bounds,
    store_tile,
    visible,
)


@triton.jit
def _weights_of_queries(
    b_q1, b_q2, b_k1, b_k2, p_lse, p_lam, p_first, p_last, b_queries, b_keys, m_real,
    stride_lt, num_queries, num_keys, scale_log2,
    NUM_MAPS: tl.constexpr, CAUSAL: tl.constexpr, RANGES: tl.constexpr, MASKED: tl.constexpr,
):  # fmt: skip
    """A1 and λ A2, transposed ``[N, M]``; A1 twice if there is one map."""
    m_queries = b_queries < num_queries
    # lse = +inf after the last query makes its weights 0.
    b_lse1, b_lse2 = load_numbers(p_lse, b_queries, num_queries, float("inf"), NUM_MAPS == 2)
    if NUM_MAPS == 2:
        b_lam = tl.load(p_lam + b_queries.to(tl.int64) * stride_lt, mask=m_queries, other=0.0)
    b_s1 = tl.dot(b_k1, tl.trans(b_q1), input_precision="ieee") * scale_log2  # [N, M]
    b_s2 = b_s1
    if NUM_MAPS == 2:
        b_s2 = tl.dot(b_k2, tl.trans(b_q2), input_precision="ieee") * scale_log2
    if MASKED:
        b_first, b_last = keys_of_queries(
            p_first, p_last, b_queries, num_queries, num_keys, CAUSAL, RANGES
        )
        m_seen = visible(
            b_keys[:, None], m_real[:, None], b_first[None, :], b_last[None, :], RANGES
        )
        b_s1 = tl.where(m_seen, b_s1, float("-inf"))
        b_s2 = tl.where(m_seen, b_s2, float("-inf"))
    b_p1 = tl.exp2(b_s1 - b_lse1[None, :])
    b_p2 = b_p1
    if NUM_MAPS == 2:
        b_p2 = tl.exp2(b_s2 - b_lse2[None, :]) * b_lam[None, :]
    return b_p1, b_p2


@triton.jit
def _fold_queries(
    b_dk1, b_dk2, b_dv, b_k1, b_k2, b_v, p_q, p_do, p_lam, p_lse, p_delta, p_dq, p_first, p_last,
    b_keys, m_real, start, stop,
    stride_qt, stride_qm, stride_gt, stride_lt, stride_dq,
    num_queries, num_keys, scale_log2,
    HEAD_DIM: tl.constexpr, VALUE_DIM: tl.constexpr, BLOCK_M: tl.constexpr,
    BLOCK_D: tl.constexpr, BLOCK_DV: tl.constexpr, NUM_MAPS: tl.constexpr,
    SHARED_KEYS: tl.constexpr, CAUSAL: tl.constexpr, RANGES: tl.constexpr,
    WITH_DK: tl.constexpr, WITH_DV: tl.constexpr, WITH_DQ: tl.constexpr, MASKED: tl.constexpr,
):  # fmt: skip
    """Add the terms of queries in [start, stop) of one head to dK and dV of a block of keys, and
    the terms of these keys to dQ, without the factor s."""
    for i_query in range(start, stop, BLOCK_M):
        b_queries = i_query + tl.arange(0, BLOCK_M)
        b_q1, b_q2 = load_tiles(
            p_q, i_query, stride_qt, stride_qm, num_queries, BLOCK_M, HEAD_DIM, BLOCK_D, True,
            NUM_MAPS == 2,
        )  # [M, D] each  # fmt: skip
        b_p1, b_p2 = _weights_of_queries(
            b_q1, b_q2, b_k1, b_k2, p_lse, p_lam, p_first, p_last, b_queries, b_keys, m_real,
            stride_lt, num_queries, num_keys, scale_log2, NUM_MAPS, CAUSAL, RANGES, MASKED,
        )  # fmt: skip
        b_do = load_tile(p_do, i_query, stride_gt, num_queries, BLOCK_M, VALUE_DIM, BLOCK_DV, True)
        if WITH_DV:
            b_p = b_p1
            if NUM_MAPS == 2:
                b_p = b_p1 - b_p2
            b_dv = tl.dot(b_p.to(b_do.dtype), b_do, b_dv, input_precision="ieee")  # [N, DV]
        if WITH_DK:
            b_delta1, b_delta2 = load_numbers(p_delta, b_queries, num_queries, 0.0, NUM_MAPS == 2)
            b_dp = tl.dot(b_v, tl.trans(b_do), input_precision="ieee")  # dP transposed: [N, M]
            b_ds1 = (b_p1 * (b_dp - b_delta1[None, :])).to(b_q1.dtype)
            if NUM_MAPS == 2:
                b_ds2 = (b_p2 * (b_delta2[None, :] - b_dp)).to(b_q2.dtype)
            b_dk1 = tl.dot(b_ds1, b_q1, b_dk1, input_precision="ieee")  # [N, D]
            if NUM_MAPS == 2:
                if SHARED_KEYS:
                    b_dk1 = tl.dot(b_ds2, b_q2, b_dk1, input_precision="ieee")
                else:
                    b_dk2 = tl.dot(b_ds2, b_q2, b_dk2, input_precision="ieee")
            if WITH_DQ:
                b_dq1 = tl.dot(tl.trans(b_ds1), b_k1, input_precision="ieee")  # [M, D]
                add_tile(p_dq, i_query, b_dq1, stride_dq, num_queries, HEAD_DIM)
                if NUM_MAPS == 2:
                    b_dq2 = tl.dot(tl.trans(b_ds2), b_k2, input_precision="ieee")
                    add_tile(p_dq + HEAD_DIM, i_query, b_dq2, stride_dq, num_queries, HEAD_DIM)
    return b_dk1, b_dk2, b_dv


@triton.jit
def _load_keys(
    p_k, p_v, i_key, stride_ks, stride_km, stride_vs, num_keys,
    BLOCK_N: tl.constexpr, HEAD_DIM: tl.constexpr, VALUE_DIM: tl.constexpr, BLOCK_D: tl.constexpr,
    BLOCK_DV: tl.constexpr, SHARED_KEYS: tl.constexpr, WITH_DK: tl.constexpr,
):  # fmt: skip
    """K1, K2 ``[N, D]`` and V ``[N, DV]``; V is not loaded if only dV is computed."""
    b_k1, b_k2 = load_tiles(
        p_k, i_key, stride_ks, stride_km, num_keys, BLOCK_N, HEAD_DIM, BLOCK_D, True,
        not SHARED_KEYS,
    )  # fmt: skip
    b_v = b_k1
    if WITH_DK:
        b_v = load_tile(p_v, i_key, stride_vs, num_keys, BLOCK_N, VALUE_DIM, BLOCK_DV, True)
    return b_k1, b_k2, b_v


@triton.jit
def _fold_head(
    b_dk1, b_dk2, b_dv, b_k1, b_k2, b_v, p_q, p_do, p_lam, p_lse, p_delta, p_dq, p_first, p_last,
    b_keys, m_real, bounds, i_batch, i_head,
    stride_qt, stride_qm, stride_gt, stride_lb, stride_lt, stride_lh,
    num_queries, num_keys, num_heads, scale_log2,
    HEAD_DIM: tl.constexpr, VALUE_DIM: tl.constexpr, BLOCK_M: tl.constexpr,
    BLOCK_D: tl.constexpr, BLOCK_DV: tl.constexpr, NUM_MAPS: tl.constexpr,
    SHARED_KEYS: tl.constexpr, CAUSAL: tl.constexpr, RANGES: tl.constexpr,
    WITH_DK: tl.constexpr, WITH_DV: tl.constexpr, WITH_DQ: tl.constexpr,
):  # fmt: skip
    """:func:`_fold_queries` over all queries of one head that see the block of keys."""
    if NUM_MAPS == 2:
        p_lam += i_batch * stride_lb + i_head * stride_lh
    i_rows = (i_batch * num_heads + i_head) * NUM_MAPS * num_queries
    if WITH_DQ:
        p_dq += (i_batch * num_queries * num_heads + i_head) * NUM_MAPS * HEAD_DIM
    for i_part in tl.static_range(0, 3 if RANGES else 2):
        b_dk1, b_dk2, b_dv = _fold_queries(
            b_dk1, b_dk2, b_dv, b_k1, b_k2, b_v, p_q, p_do, p_lam, p_lse + i_rows,
            p_delta + i_rows, p_dq, p_first, p_last, b_keys, m_real, bounds[i_part],
            bounds[i_part + 1], stride_qt, stride_qm, stride_gt, stride_lt,
            num_heads * NUM_MAPS * HEAD_DIM, num_queries, num_keys, scale_log2, HEAD_DIM,
            VALUE_DIM, BLOCK_M, BLOCK_D, BLOCK_DV, NUM_MAPS, SHARED_KEYS, CAUSAL, RANGES, WITH_DK,
            WITH_DV, WITH_DQ, i_part != 1,
        )  # fmt: skip
    return b_dk1, b_dk2, b_dv


@triton.jit
def _diff_attention_bwd_dkv_kernel(
    p_q, p_k, p_v, p_lam, p_do, p_lse, p_delta, p_dk, p_dv, p_dq_sum, p_first, p_last, p_begin,
    p_end, p_padding, p_before,
    stride_qb, stride_qt, stride_qh, stride_qm, stride_kb, stride_ks, stride_kh, stride_km,
    stride_vb, stride_vs, stride_vh, stride_lb, stride_lt, stride_lh, stride_gb, stride_gt,
    stride_gh, stride_rb, stride_eb,
    num_queries, num_keys, num_heads, group, scale, scale_log2, batch, splits,
    HEAD_DIM: tl.constexpr, VALUE_DIM: tl.constexpr, BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr, BLOCK_D: tl.constexpr, BLOCK_DV: tl.constexpr,
    NUM_MAPS: tl.constexpr, SHARED_KEYS: tl.constexpr, CAUSAL: tl.constexpr,
    RANGES: tl.constexpr, PADDING: tl.constexpr, WITH_DK: tl.constexpr, WITH_DV: tl.constexpr,
    WITH_DQ: tl.constexpr,
):  # fmt: skip
    """dK, dV or both ``[splits, B, S, Hkv, ...]`` of a block of keys, summed over one of ``splits``
    parts of its query heads; adds its part to dQ ``[B, T, H, maps, D]``, without s."""
    i_key = tl.program_id(0) * BLOCK_N
    i_kv_head = tl.program_id(1).to(tl.int64) // splits
    i_split = tl.program_id(1).to(tl.int64) % splits
    i_batch = tl.program_id(2).to(tl.int64)
    members = group // splits  # query heads in this part
    num_kv_heads = num_heads // group
    p_k += i_batch * stride_kb + i_kv_head * stride_kh
    p_v += i_batch * stride_vb + i_kv_head * stride_vh
    if RANGES:
        p_first += i_batch * stride_rb
        p_last += i_batch * stride_rb
        p_begin += i_batch * stride_eb
        p_end += i_batch * stride_eb
    if PADDING:
        p_padding += i_batch * num_keys
        p_before += i_batch * (num_keys + 1)
    b_keys = i_key + tl.arange(0, BLOCK_N)
    m_real = load_real(p_padding, b_keys, num_keys, PADDING)
    b_k1, b_k2, b_v = _load_keys(
        p_k, p_v, i_key, stride_ks, stride_km, stride_vs, num_keys, BLOCK_N, HEAD_DIM, VALUE_DIM,
        BLOCK_D, BLOCK_DV, SHARED_KEYS, WITH_DK,
    )  # fmt: skip
    # Gradients that are not computed are one column wide and never used.
    b_dk1 = tl.zeros([BLOCK_N, BLOCK_D if WITH_DK else 1], tl.float32)
    b_dk2 = tl.zeros([BLOCK_N, BLOCK_D if WITH_DK and not SHARED_KEYS else 1], tl.float32)
    b_dv = tl.zeros([BLOCK_N, BLOCK_DV if WITH_DV else 1], tl.float32)
    bounds = query_bounds(
        p_begin, p_end, p_before, i_key, num_queries, num_keys, CAUSAL, RANGES, PADDING, BLOCK_M,
        BLOCK_N,
    )  # fmt: skip
    for i_member in range(members):
        i_head = i_kv_head * group + i_split * members + i_member
        b_dk1, b_dk2, b_dv = _fold_head(
            b_dk1, b_dk2, b_dv, b_k1, b_k2, b_v, p_q + i_batch * stride_qb + i_head * stride_qh,
            p_do + i_batch * stride_gb + i_head * stride_gh, p_lam, p_lse, p_delta, p_dq_sum,
            p_first, p_last, b_keys, m_real, bounds, i_batch, i_head, stride_qt, stride_qm,
            stride_gt, stride_lb, stride_lt, stride_lh, num_queries, num_keys, num_heads,
            scale_log2, HEAD_DIM, VALUE_DIM, BLOCK_M, BLOCK_D, BLOCK_DV, NUM_MAPS, SHARED_KEYS,
            CAUSAL, RANGES, WITH_DK, WITH_DV, WITH_DQ,
        )  # fmt: skip
    _store_dk_dv(
        p_dk, p_dv, i_key, (i_split * batch + i_batch) * num_keys * num_kv_heads + i_kv_head,
        b_dk1, b_dk2, b_dv, scale, num_keys, num_kv_heads, HEAD_DIM, VALUE_DIM, SHARED_KEYS,
        WITH_DK, WITH_DV,
    )  # fmt: skip


@triton.jit
def _store_dk_dv(
    p_dk, p_dv, i_key, i_row, b_dk1, b_dk2, b_dv, scale, num_keys, num_kv_heads,
    HEAD_DIM: tl.constexpr, VALUE_DIM: tl.constexpr, SHARED_KEYS: tl.constexpr,
    WITH_DK: tl.constexpr, WITH_DV: tl.constexpr,
):  # fmt: skip
    """Write dK and dV as far as they are computed; ``i_row`` is the row of this head at key 0."""
    if WITH_DK:
        NUM_KEY_MAPS: tl.constexpr = 1 if SHARED_KEYS else 2
        p_dk += i_row * NUM_KEY_MAPS * HEAD_DIM
        stride_dk = num_kv_heads * NUM_KEY_MAPS * HEAD_DIM
        store_tile(p_dk, i_key, b_dk1 * scale, stride_dk, num_keys, HEAD_DIM)
        if not SHARED_KEYS:
            p_dk += HEAD_DIM
            store_tile(p_dk, i_key, b_dk2 * scale, stride_dk, num_keys, HEAD_DIM)
    if WITH_DV:
        p_dv += i_row * VALUE_DIM
        stride_dv = num_kv_heads * VALUE_DIM
        store_tile(p_dv, i_key, b_dv, stride_dv, num_keys, VALUE_DIM)
