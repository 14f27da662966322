"""The backward pass of softmax attention in the same technique as that of the differential one.

Source: arXiv:2205.14135, Algorithm 4; in one kernel as in arXiv:2307.08691, Section 3.1.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from diffattn.ops.triton.configs import PREPROCESS, backward_configs
from diffattn.ops.triton.launch import (
    LOG2_E,
    KeyMask,
    dense_rows,
    gradients_by_keys,
    widths,
)
from diffattn.ops.triton.tiles import (
    add_tile,
    key_bounds,
    keys_of_queries,
    load_real,
    load_tile,
    query_bounds,
    store_tile,
    visible,
)


@triton.jit
def _softmax_attention_bwd_preprocess_kernel(
    p_do, p_o, p_delta,
    stride_gb, stride_gt, stride_gh,
    num_queries, num_heads,
    VALUE_DIM: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_DV: tl.constexpr,
):  # fmt: skip
    """D = rowsum(dO O) ``[B, H, T]``."""
    i_head = tl.program_id(1).to(tl.int64)
    i_batch = tl.program_id(2).to(tl.int64)
    i_query = tl.program_id(0) * BLOCK_M
    b_queries = i_query + tl.arange(0, BLOCK_M)
    p_do += i_batch * stride_gb + i_head * stride_gh
    p_o += (i_batch * num_queries * num_heads + i_head) * VALUE_DIM
    stride_o = num_heads * VALUE_DIM
    b_do = load_tile(p_do, i_query, stride_gt, num_queries, BLOCK_M, VALUE_DIM, BLOCK_DV, True)
    b_o = load_tile(
        p_o, i_query, stride_o, num_queries, BLOCK_M, VALUE_DIM, BLOCK_DV, True
    )  # [M, DV]
    b_delta = tl.sum(b_do.to(tl.float32) * b_o.to(tl.float32), 1)
    p_delta += (i_batch * num_heads + i_head) * num_queries
    tl.store(p_delta + b_queries, b_delta, mask=b_queries < num_queries)


@triton.jit
def _fold_queries(
    b_dk, b_dv, b_k, b_v, p_q, p_do, p_lse, p_delta, p_dq, p_first, p_last, b_keys, m_real, start,
    stop,
    stride_qt, stride_gt, stride_dq,
    num_queries, num_keys, scale_log2,
    HEAD_DIM: tl.constexpr, VALUE_DIM: tl.constexpr, BLOCK_M: tl.constexpr,
    BLOCK_D: tl.constexpr, BLOCK_DV: tl.constexpr, CAUSAL: tl.constexpr, RANGES: tl.constexpr,
    WITH_DQ: tl.constexpr, MASKED: tl.constexpr,
):  # fmt: skip
    """Add what the queries in [start, stop) of one head give to dK and dV of a block of keys, and
    what these keys give to dQ, but for the factor s."""
    for i_query in range(start, stop, BLOCK_M):
        b_queries = i_query + tl.arange(0, BLOCK_M)
        m_queries = b_queries < num_queries
        b_q = load_tile(
            p_q, i_query, stride_qt, num_queries, BLOCK_M, HEAD_DIM, BLOCK_D, True
        )  # [M, D]
        b_lse = tl.load(p_lse + b_queries, mask=m_queries, other=float("inf"))
        b_s = tl.dot(b_k, tl.trans(b_q), input_precision="ieee") * scale_log2  # [N, M]
        if MASKED:
            b_first, b_last = keys_of_queries(
                p_first, p_last, b_queries, num_queries, num_keys, CAUSAL, RANGES
            )
            m_seen = visible(
                b_keys[:, None], m_real[:, None], b_first[None, :], b_last[None, :], RANGES
            )
            b_s = tl.where(m_seen, b_s, float("-inf"))
        b_p = tl.exp2(b_s - b_lse[None, :])
        b_do = load_tile(p_do, i_query, stride_gt, num_queries, BLOCK_M, VALUE_DIM, BLOCK_DV, True)
        b_dv = tl.dot(b_p.to(b_do.dtype), b_do, b_dv, input_precision="ieee")  # [N, DV]
        b_delta = tl.load(p_delta + b_queries, mask=m_queries, other=0.0)
        b_dp = tl.dot(b_v, tl.trans(b_do), input_precision="ieee")  # dP transposed: [N, M]
        b_ds = (b_p * (b_dp - b_delta[None, :])).to(b_q.dtype)
        b_dk = tl.dot(b_ds, b_q, b_dk, input_precision="ieee")  # [N, D]
        if WITH_DQ:
            b_dq = tl.dot(tl.trans(b_ds), b_k, input_precision="ieee")  # [M, D]
            add_tile(p_dq, i_query, b_dq, stride_dq, num_queries, BLOCK_M, HEAD_DIM, BLOCK_D)
    return b_dk, b_dv


@triton.jit
def _softmax_attention_bwd_dkv_kernel(
    p_q, p_k, p_v, p_do, p_lse, p_delta, p_dk, p_dv, p_dq_sum, p_first, p_last, p_begin, p_end,
    p_padding, p_before,
    stride_qb, stride_qt, stride_qh, stride_kb, stride_ks, stride_kh, stride_vb, stride_vs,
    stride_vh, stride_gb, stride_gt, stride_gh, stride_rb, stride_eb,
    num_queries, num_keys, num_heads, group, scale, scale_log2, batch, splits,
    HEAD_DIM: tl.constexpr, VALUE_DIM: tl.constexpr, BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr, BLOCK_D: tl.constexpr, BLOCK_DV: tl.constexpr, CAUSAL: tl.constexpr,
    RANGES: tl.constexpr, PADDING: tl.constexpr, WITH_DQ: tl.constexpr,
):  # fmt: skip
    """dK and dV of a block of keys, and what it gives to dQ; as in differential attention."""
    i_key = tl.program_id(0) * BLOCK_N
    i_kv_head = tl.program_id(1).to(tl.int64) // splits
    i_split = tl.program_id(1).to(tl.int64) % splits
    i_batch = tl.program_id(2).to(tl.int64)
    members = group // splits
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
    b_k = load_tile(p_k, i_key, stride_ks, num_keys, BLOCK_N, HEAD_DIM, BLOCK_D, True)  # [N, D]
    b_v = load_tile(p_v, i_key, stride_vs, num_keys, BLOCK_N, VALUE_DIM, BLOCK_DV, True)  # [N, DV]
    b_dk = tl.zeros([BLOCK_N, BLOCK_D], tl.float32)
    b_dv = tl.zeros([BLOCK_N, BLOCK_DV], tl.float32)
    bounds = query_bounds(
        p_begin, p_end, p_before, i_key, num_queries, num_keys, CAUSAL, RANGES, PADDING, BLOCK_M,
        BLOCK_N,
    )  # fmt: skip
    stride_dq = num_heads * HEAD_DIM
    for i_member in range(members):
        i_head = i_kv_head * group + i_split * members + i_member
        p_q_head = p_q + i_batch * stride_qb + i_head * stride_qh
        p_do_head = p_do + i_batch * stride_gb + i_head * stride_gh
        i_rows = (i_batch * num_heads + i_head) * num_queries
        p_dq_head = p_dq_sum
        if WITH_DQ:
            p_dq_head += (i_batch * num_queries * num_heads + i_head) * HEAD_DIM
        for i_part in tl.static_range(0, 3 if RANGES else 2):
            b_dk, b_dv = _fold_queries(
                b_dk, b_dv, b_k, b_v, p_q_head, p_do_head, p_lse + i_rows, p_delta + i_rows,
                p_dq_head, p_first, p_last, b_keys, m_real, bounds[i_part], bounds[i_part + 1],
                stride_qt, stride_gt, stride_dq, num_queries, num_keys, scale_log2, HEAD_DIM,
                VALUE_DIM, BLOCK_M, BLOCK_D, BLOCK_DV, CAUSAL, RANGES, WITH_DQ, i_part != 1,
            )  # fmt: skip
    i_row = (i_split * batch + i_batch) * num_keys * num_kv_heads + i_kv_head
    p_dk += i_row * HEAD_DIM
    p_dv += i_row * VALUE_DIM
    stride_dk = num_kv_heads * HEAD_DIM
    stride_dv = num_kv_heads * VALUE_DIM
    store_tile(p_dk, i_key, b_dk * scale, stride_dk, num_keys, BLOCK_N, HEAD_DIM, BLOCK_D)
    store_tile(p_dv, i_key, b_dv, stride_dv, num_keys, BLOCK_N, VALUE_DIM, BLOCK_DV)


@triton.jit
def _fold_keys(
    b_dq, b_q, b_do, b_lse, b_delta, p_k, p_v, p_padding, b_first, b_last, start, stop,
    stride_ks, stride_vs,
    num_keys, scale_log2,
    HEAD_DIM: tl.constexpr, VALUE_DIM: tl.constexpr, BLOCK_N: tl.constexpr,
    BLOCK_D: tl.constexpr, BLOCK_DV: tl.constexpr, RANGES: tl.constexpr, PADDING: tl.constexpr,
    MASKED: tl.constexpr,
):  # fmt: skip
    """Add what the keys in [start, stop) give to dQ, but for the factor s."""
    for i_key in range(start, stop, BLOCK_N):
        b_keys = i_key + tl.arange(0, BLOCK_N)
        b_k = load_tile(
            p_k, i_key, stride_ks, num_keys, BLOCK_N, HEAD_DIM, BLOCK_D, MASKED
        )  # [N, D]
        b_s = tl.dot(b_q, tl.trans(b_k), input_precision="ieee") * scale_log2  # [M, N]
        if MASKED:
            m_real = load_real(p_padding, b_keys, num_keys, PADDING)
            m_seen = visible(
                b_keys[None, :], m_real[None, :], b_first[:, None], b_last[:, None], RANGES
            )
            b_s = tl.where(m_seen, b_s, float("-inf"))
        b_v = load_tile(
            p_v, i_key, stride_vs, num_keys, BLOCK_N, VALUE_DIM, BLOCK_DV, MASKED
        )  # [N, DV]
        b_dp = tl.dot(b_do, tl.trans(b_v), input_precision="ieee")  # [M, N]
        b_ds = tl.exp2(b_s - b_lse[:, None]) * (b_dp - b_delta[:, None])
        b_dq = tl.dot(b_ds.to(b_k.dtype), b_k, b_dq, input_precision="ieee")  # [M, D]
    return b_dq


@triton.jit
def _softmax_attention_bwd_dq_kernel(
    p_q, p_k, p_v, p_do, p_lse, p_delta, p_dq, p_first, p_last, p_padding, p_before,
    stride_qb, stride_qt, stride_qh, stride_kb, stride_ks, stride_kh, stride_vb, stride_vs,
    stride_vh, stride_gb, stride_gt, stride_gh, stride_rb,
    num_queries, num_keys, num_heads, group, scale, scale_log2,
    HEAD_DIM: tl.constexpr, VALUE_DIM: tl.constexpr, BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr, BLOCK_D: tl.constexpr, BLOCK_DV: tl.constexpr, CAUSAL: tl.constexpr,
    RANGES: tl.constexpr, PADDING: tl.constexpr,
):  # fmt: skip
    """dQ of a block of queries."""
    i_query = (tl.num_programs(0) - 1 - tl.program_id(0)) * BLOCK_M
    i_head = tl.program_id(1).to(tl.int64)
    i_batch = tl.program_id(2).to(tl.int64)
    i_kv_head = i_head // group
    p_q += i_batch * stride_qb + i_head * stride_qh
    p_k += i_batch * stride_kb + i_kv_head * stride_kh
    p_v += i_batch * stride_vb + i_kv_head * stride_vh
    p_do += i_batch * stride_gb + i_head * stride_gh
    p_lse += (i_batch * num_heads + i_head) * num_queries
    p_delta += (i_batch * num_heads + i_head) * num_queries
    p_dq += (i_batch * num_queries * num_heads + i_head) * HEAD_DIM
    if RANGES:
        p_first += i_batch * stride_rb
        p_last += i_batch * stride_rb
    if PADDING:
        p_padding += i_batch * num_keys
        p_before += i_batch * (num_keys + 1)

    b_queries = i_query + tl.arange(0, BLOCK_M)
    m_queries = b_queries < num_queries
    b_q = load_tile(
        p_q, i_query, stride_qt, num_queries, BLOCK_M, HEAD_DIM, BLOCK_D, True
    )  # [M, D]
    b_do = load_tile(p_do, i_query, stride_gt, num_queries, BLOCK_M, VALUE_DIM, BLOCK_DV, True)
    b_lse = tl.load(p_lse + b_queries, mask=m_queries, other=float("inf"))
    b_delta = tl.load(p_delta + b_queries, mask=m_queries, other=0.0)
    b_dq = tl.zeros([BLOCK_M, BLOCK_D], tl.float32)
    b_first, b_last = keys_of_queries(
        p_first, p_last, b_queries, num_queries, num_keys, CAUSAL, RANGES
    )
    bounds = key_bounds(
        p_first, p_last, p_before, i_query, num_queries, num_keys, CAUSAL, RANGES, PADDING,
        BLOCK_M, BLOCK_N,
    )  # fmt: skip
    for i_part in tl.static_range(0 if RANGES else 1, 3):
        b_dq = _fold_keys(
            b_dq, b_q, b_do, b_lse, b_delta, p_k, p_v, p_padding, b_first, b_last, bounds[i_part],
            bounds[i_part + 1], stride_ks, stride_vs, num_keys, scale_log2, HEAD_DIM, VALUE_DIM,
            BLOCK_N, BLOCK_D, BLOCK_DV, RANGES, PADDING, i_part != 1,
        )  # fmt: skip
    stride_dq = num_heads * HEAD_DIM
    store_tile(p_dq, i_query, b_dq * scale, stride_dq, num_queries, BLOCK_M, HEAD_DIM, BLOCK_D)


def backward(
    grad: Tensor, q: Tensor, k: Tensor, v: Tensor, o: Tensor, lse: Tensor, *,
    scale: float, mask: KeyMask,
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    """Gradients of ``q``, ``k`` and ``v``.

    Source: arXiv:2205.14135, Algorithm 4.

    ``grad`` is that of the output, ``[B, T, H, Dv]``; ``o`` and ``lse`` are what
    :func:`diffattn.ops.triton.softmax.forward` returned, with its other arguments;
    the mask also says which queries see a key. Results have shapes and dtypes of their tensors.
    """
    batch, num_queries, num_heads, head_dim = q.shape
    num_keys, num_kv_heads, value_dim = v.shape[1:]
    grad, q, k, v = (dense_rows(x) for x in (grad, q, k, v))
    o, lse = o.contiguous(), lse.contiguous()
    delta = torch.empty_like(lse)
    strides = (*q.stride()[:3], *k.stride()[:3], *v.stride()[:3], *grad.stride()[:3])
    sizes = (num_queries, num_keys, num_heads, num_heads // num_kv_heads, scale, scale * LOG2_E)
    fixed = widths(head_dim, value_dim) | mask.flags

    grid = (triton.cdiv(num_queries, PREPROCESS.block_m), num_heads, batch)
    _softmax_attention_bwd_preprocess_kernel[grid](
        grad, o, delta, *grad.stride()[:3], num_queries, num_heads, VALUE_DIM=value_dim,
        BLOCK_DV=fixed["BLOCK_DV"], BLOCK_M=PREPROCESS.block_m, **PREPROCESS.compiler_options,
    )  # fmt: skip

    def go_by_keys(
        grid: tuple[int, ...], targets: dict[str, Tensor], splits: int, options: dict[str, int]
    ) -> None:
        _softmax_attention_bwd_dkv_kernel[grid](
            q, k, v, grad, lse, delta, *map(targets.get, ("DK", "DV", "DQ")), *mask.of_keys,
            *strides, mask.batch_stride, mask.key_batch_stride, *sizes, batch, splits, **fixed,
            WITH_DQ="DQ" in targets, **options,
        )  # fmt: skip

    configs = backward_configs("softmax_", q, value_dim)
    gradients = gradients_by_keys(go_by_keys, configs, q, k, v)
    if "dq" in configs:
        config, dq = configs["dq"], torch.empty(q.shape, dtype=q.dtype, device=q.device)
        grid = (triton.cdiv(num_queries, config.block_m), num_heads, batch)
        _softmax_attention_bwd_dq_kernel[grid](
            q, k, v, grad, lse, delta, dq, *mask.of_queries, *strides, mask.batch_stride, *sizes,
            **fixed, **config.options,
        )  # fmt: skip
    else:
        dq = gradients["DQ"].mul_(scale).to(q.dtype)
    return dq, gradients["DK"], gradients["DV"]
