"""Softmax attention in the same technique: what differential attention is to be compared with.

One map instead of two; the kernels, their number, their masks and their tiles are otherwise those
of the other modules. Source: arXiv:2205.14135, Algorithms 1 and 4.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from diffattn.ops.diff_attention.triton.configs import launch_configs
from diffattn.ops.diff_attention.triton.launch import LOG2_E, KeyMask, block_width, dense_rows
from diffattn.ops.diff_attention.triton.tiles import (
    finish_softmax,
    key_bounds,
    keys_of_queries,
    load_real,
    load_tile,
    query_bounds,
    softmax_step,
    store_tile,
    visible,
)


@triton.jit
def _logits(
    b_rows, b_columns, m_seen, scale_log2,
    MASKED: tl.constexpr,
):  # fmt: skip
    """Base-2 logits of one tile, -inf where hidden."""
    b_s = tl.dot(b_rows, tl.trans(b_columns), input_precision="ieee") * scale_log2
    if MASKED:
        b_s = tl.where(m_seen, b_s, float("-inf"))
    return b_s


@triton.jit
def fold_keys(
    b_q, b_max, b_sum, b_acc, p_k, p_v, p_padding, b_first, b_last, start, stop,
    stride_ks, stride_vs,
    num_keys, scale_log2,
    HEAD_DIM: tl.constexpr, VALUE_DIM: tl.constexpr, BLOCK_N: tl.constexpr,
    BLOCK_D: tl.constexpr, BLOCK_DV: tl.constexpr, RANGES: tl.constexpr, PADDING: tl.constexpr,
    MASKED: tl.constexpr,
):  # fmt: skip
    """Take the keys in [start, stop) into the softmax."""
    for i_key in range(start, stop, BLOCK_N):
        b_keys = i_key + tl.arange(0, BLOCK_N)
        b_k = load_tile(
            p_k, i_key, stride_ks, num_keys, BLOCK_N, HEAD_DIM, BLOCK_D, MASKED
        )  # [N, D]
        m_real = load_real(p_padding, b_keys, num_keys, PADDING)
        m_seen = visible(
            b_keys[None, :], m_real[None, :], b_first[:, None], b_last[:, None], RANGES
        )
        b_s = _logits(b_q, b_k, m_seen, scale_log2, MASKED)  # [M, N]
        b_v = load_tile(
            p_v, i_key, stride_vs, num_keys, BLOCK_N, VALUE_DIM, BLOCK_DV, MASKED
        )  # [N, DV]
        b_max, b_sum, b_acc = softmax_step(b_s, b_v, b_max, b_sum, b_acc, MASKED)
    return b_max, b_sum, b_acc


@triton.jit
def _softmax_attention_fwd_kernel(
    p_q, p_k, p_v, p_o, p_lse, p_first, p_last, p_padding,
    stride_qb, stride_qt, stride_qh, stride_kb, stride_ks, stride_kh, stride_vb, stride_vs,
    stride_vh, stride_rb,
    num_queries, num_keys, num_heads, group, scale_log2,
    HEAD_DIM: tl.constexpr, VALUE_DIM: tl.constexpr, BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr, BLOCK_D: tl.constexpr, BLOCK_DV: tl.constexpr, CAUSAL: tl.constexpr,
    RANGES: tl.constexpr, PADDING: tl.constexpr,
):  # fmt: skip
    """O ``[B, T, H, DV]`` and the logs of the rows' sums ``[B, H, T]``, in base 2."""
    i_query = (tl.num_programs(0) - 1 - tl.program_id(0)) * BLOCK_M
    i_head = tl.program_id(1).to(tl.int64)
    i_batch = tl.program_id(2).to(tl.int64)
    i_kv_head = i_head // group
    p_q += i_batch * stride_qb + i_head * stride_qh
    p_k += i_batch * stride_kb + i_kv_head * stride_kh
    p_v += i_batch * stride_vb + i_kv_head * stride_vh
    p_o += (i_batch * num_queries * num_heads + i_head) * VALUE_DIM
    p_lse += (i_batch * num_heads + i_head) * num_queries
    if RANGES:
        p_first += i_batch * stride_rb
        p_last += i_batch * stride_rb
    if PADDING:
        p_padding += i_batch * num_keys

    b_queries = i_query + tl.arange(0, BLOCK_M)
    b_q = load_tile(
        p_q, i_query, stride_qt, num_queries, BLOCK_M, HEAD_DIM, BLOCK_D, True
    )  # [M, D]
    b_max = tl.full([BLOCK_M], float("-inf"), tl.float32)
    b_sum = tl.zeros([BLOCK_M], tl.float32)
    b_acc = tl.zeros([BLOCK_M, BLOCK_DV], tl.float32)
    b_first, b_last = keys_of_queries(
        p_first, p_last, b_queries, num_queries, num_keys, CAUSAL, RANGES
    )
    start, full, stop = key_bounds(
        p_first, p_last, i_query, num_queries, num_keys, CAUSAL, RANGES, PADDING, BLOCK_M, BLOCK_N
    )
    if not (RANGES or PADDING):
        b_max, b_sum, b_acc = fold_keys(
            b_q, b_max, b_sum, b_acc, p_k, p_v, p_padding, b_first, b_last, start, full,
            stride_ks, stride_vs, num_keys, scale_log2, HEAD_DIM, VALUE_DIM, BLOCK_N, BLOCK_D,
            BLOCK_DV, RANGES, PADDING, False,
        )  # fmt: skip
    b_max, b_sum, b_acc = fold_keys(
        b_q, b_max, b_sum, b_acc, p_k, p_v, p_padding, b_first, b_last, full, stop, stride_ks,
        stride_vs, num_keys, scale_log2, HEAD_DIM, VALUE_DIM, BLOCK_N, BLOCK_D, BLOCK_DV, RANGES,
        PADDING, True,
    )  # fmt: skip
    b_o, b_lse = finish_softmax(b_max, b_sum, b_acc)
    tl.store(p_lse + b_queries, b_lse, mask=b_queries < num_queries)
    stride_o = num_heads * VALUE_DIM
    store_tile(p_o, i_query, b_o, stride_o, num_queries, BLOCK_M, VALUE_DIM, BLOCK_DV)


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
    b_dk, b_dv, b_k, b_v, p_q, p_do, p_lse, p_delta, p_first, p_last, b_keys, m_real, start, stop,
    stride_qt, stride_gt,
    num_queries, num_keys, scale_log2,
    HEAD_DIM: tl.constexpr, VALUE_DIM: tl.constexpr, BLOCK_M: tl.constexpr,
    BLOCK_D: tl.constexpr, BLOCK_DV: tl.constexpr, CAUSAL: tl.constexpr, RANGES: tl.constexpr,
    MASKED: tl.constexpr,
):  # fmt: skip
    """Add what the queries in [start, stop) of one head give to dK and dV of a block of keys."""
    for i_query in range(start, stop, BLOCK_M):
        b_queries = i_query + tl.arange(0, BLOCK_M)
        m_queries = b_queries < num_queries
        b_q = load_tile(
            p_q, i_query, stride_qt, num_queries, BLOCK_M, HEAD_DIM, BLOCK_D, True
        )  # [M, D]
        b_lse = tl.load(p_lse + b_queries, mask=m_queries, other=float("inf"))
        b_first, b_last = keys_of_queries(
            p_first, p_last, b_queries, num_queries, num_keys, CAUSAL, RANGES
        )
        m_seen = visible(
            b_keys[:, None], m_real[:, None], b_first[None, :], b_last[None, :], RANGES
        )
        b_s = _logits(b_k, b_q, m_seen, scale_log2, MASKED)  # transposed: [N, M]
        b_p = tl.exp2(b_s - b_lse[None, :])
        b_do = load_tile(p_do, i_query, stride_gt, num_queries, BLOCK_M, VALUE_DIM, BLOCK_DV, True)
        b_dv = tl.dot(b_p.to(b_do.dtype), b_do, b_dv, input_precision="ieee")  # [N, DV]
        b_delta = tl.load(p_delta + b_queries, mask=m_queries, other=0.0)
        b_dp = tl.dot(b_v, tl.trans(b_do), input_precision="ieee")  # dP transposed: [N, M]
        b_ds = (b_p * (b_dp - b_delta[None, :])).to(b_q.dtype)
        b_dk = tl.dot(b_ds, b_q, b_dk, input_precision="ieee")  # [N, D]
    return b_dk, b_dv


@triton.jit
def _softmax_attention_bwd_dkv_kernel(
    p_q, p_k, p_v, p_do, p_lse, p_delta, p_dk, p_dv, p_first, p_last, p_begin, p_end, p_padding,
    stride_qb, stride_qt, stride_qh, stride_kb, stride_ks, stride_kh, stride_vb, stride_vs,
    stride_vh, stride_gb, stride_gt, stride_gh, stride_rb, stride_eb,
    num_queries, num_keys, num_heads, group, scale, scale_log2,
    HEAD_DIM: tl.constexpr, VALUE_DIM: tl.constexpr, BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr, BLOCK_D: tl.constexpr, BLOCK_DV: tl.constexpr, CAUSAL: tl.constexpr,
    RANGES: tl.constexpr, PADDING: tl.constexpr,
):  # fmt: skip
    """dK and dV of a block of keys, summed over the query heads that read it."""
    i_key = tl.program_id(0) * BLOCK_N
    i_kv_head = tl.program_id(1).to(tl.int64)
    i_batch = tl.program_id(2).to(tl.int64)
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

    b_keys = i_key + tl.arange(0, BLOCK_N)
    m_real = load_real(p_padding, b_keys, num_keys, PADDING)
    b_k = load_tile(p_k, i_key, stride_ks, num_keys, BLOCK_N, HEAD_DIM, BLOCK_D, True)  # [N, D]
    b_v = load_tile(p_v, i_key, stride_vs, num_keys, BLOCK_N, VALUE_DIM, BLOCK_DV, True)  # [N, DV]
    b_dk = tl.zeros([BLOCK_N, BLOCK_D], tl.float32)
    b_dv = tl.zeros([BLOCK_N, BLOCK_DV], tl.float32)
    start, full, stop = query_bounds(
        p_begin, p_end, i_key, num_queries, num_keys, CAUSAL, RANGES, PADDING, BLOCK_M, BLOCK_N
    )
    for i_member in range(group):
        i_head = i_kv_head * group + i_member
        p_q_head = p_q + i_batch * stride_qb + i_head * stride_qh
        p_do_head = p_do + i_batch * stride_gb + i_head * stride_gh
        i_rows = (i_batch * num_heads + i_head) * num_queries
        b_dk, b_dv = _fold_queries(
            b_dk, b_dv, b_k, b_v, p_q_head, p_do_head, p_lse + i_rows, p_delta + i_rows, p_first,
            p_last, b_keys, m_real, start, full, stride_qt, stride_gt, num_queries, num_keys,
            scale_log2, HEAD_DIM, VALUE_DIM, BLOCK_M, BLOCK_D, BLOCK_DV, CAUSAL, RANGES, True,
        )  # fmt: skip
        if not (RANGES or PADDING):
            b_dk, b_dv = _fold_queries(
                b_dk, b_dv, b_k, b_v, p_q_head, p_do_head, p_lse + i_rows, p_delta + i_rows,
                p_first, p_last, b_keys, m_real, full, stop, stride_qt, stride_gt, num_queries,
                num_keys, scale_log2, HEAD_DIM, VALUE_DIM, BLOCK_M, BLOCK_D, BLOCK_DV, CAUSAL,
                RANGES, False,
            )  # fmt: skip
    i_row = i_batch * num_keys * num_kv_heads + i_kv_head
    p_dk += i_row * HEAD_DIM
    p_dv += i_row * VALUE_DIM
    stride_dk = num_kv_heads * HEAD_DIM
    stride_dv = num_kv_heads * VALUE_DIM
    store_tile(p_dk, i_key, b_dk * scale, stride_dk, num_keys, BLOCK_N, HEAD_DIM, BLOCK_D)
    store_tile(p_dv, i_key, b_dv, stride_dv, num_keys, BLOCK_N, VALUE_DIM, BLOCK_DV)


@triton.jit
def _fold_keys_backward(
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
        m_real = load_real(p_padding, b_keys, num_keys, PADDING)
        m_seen = visible(
            b_keys[None, :], m_real[None, :], b_first[:, None], b_last[:, None], RANGES
        )
        b_s = _logits(b_q, b_k, m_seen, scale_log2, MASKED)  # [M, N]
        b_v = load_tile(
            p_v, i_key, stride_vs, num_keys, BLOCK_N, VALUE_DIM, BLOCK_DV, MASKED
        )  # [N, DV]
        b_dp = tl.dot(b_do, tl.trans(b_v), input_precision="ieee")  # [M, N]
        b_ds = tl.exp2(b_s - b_lse[:, None]) * (b_dp - b_delta[:, None])
        b_dq = tl.dot(b_ds.to(b_k.dtype), b_k, b_dq, input_precision="ieee")  # [M, D]
    return b_dq


@triton.jit
def _softmax_attention_bwd_dq_kernel(
    p_q, p_k, p_v, p_do, p_lse, p_delta, p_dq, p_first, p_last, p_padding,
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
    start, full, stop = key_bounds(
        p_first, p_last, i_query, num_queries, num_keys, CAUSAL, RANGES, PADDING, BLOCK_M, BLOCK_N
    )
    if not (RANGES or PADDING):
        b_dq = _fold_keys_backward(
            b_dq, b_q, b_do, b_lse, b_delta, p_k, p_v, p_padding, b_first, b_last, start, full,
            stride_ks, stride_vs, num_keys, scale_log2, HEAD_DIM, VALUE_DIM, BLOCK_N, BLOCK_D,
            BLOCK_DV, RANGES, PADDING, False,
        )  # fmt: skip
    b_dq = _fold_keys_backward(
        b_dq, b_q, b_do, b_lse, b_delta, p_k, p_v, p_padding, b_first, b_last, full, stop,
        stride_ks, stride_vs, num_keys, scale_log2, HEAD_DIM, VALUE_DIM, BLOCK_N, BLOCK_D,
        BLOCK_DV, RANGES, PADDING, True,
    )  # fmt: skip
    stride_dq = num_heads * HEAD_DIM
    store_tile(p_dq, i_query, b_dq * scale, stride_dq, num_queries, BLOCK_M, HEAD_DIM, BLOCK_D)


def forward(
    q: Tensor, k: Tensor, v: Tensor, *, scale: float, mask: KeyMask
) -> tuple[Tensor, Tensor]:
    """Output and the logarithms of the softmax sums.

    Source: arXiv:1706.03762, Eq. (1).

    Arguments as in :func:`diffattn.ops.diff_attention.custom_op.softmax_attention`, the mask as the
    kernels read it.

    Returns:
        ``[B, T, H, Dv]`` in the dtype of ``q``, and float32 ``[B, H, T]``, in base 2.
    """
    batch, num_queries, num_heads, head_dim = q.shape
    num_keys, num_kv_heads, value_dim = v.shape[1:]
    q, k, v = dense_rows(q), dense_rows(k), dense_rows(v)
    o = torch.empty(batch, num_queries, num_heads, value_dim, dtype=q.dtype, device=q.device)
    lse = torch.empty(batch, num_heads, num_queries, dtype=torch.float32, device=q.device)
    config = launch_configs("softmax_fwd", q, value_dim)["softmax_fwd"]
    grid = (triton.cdiv(num_queries, config.block_m), num_heads, batch)
    _softmax_attention_fwd_kernel[grid](
        q, k, v, o, lse, mask.first, mask.last, mask.padding, *q.stride()[:3], *k.stride()[:3],
        *v.stride()[:3], mask.batch_stride, num_queries, num_keys, num_heads,
        num_heads // num_kv_heads, scale * LOG2_E, **_widths(head_dim, value_dim), **mask.flags,
        **config.options,
    )  # fmt: skip
    return o, lse


def backward(
    grad: Tensor, q: Tensor, k: Tensor, v: Tensor, o: Tensor, lse: Tensor, *,
    scale: float, mask: KeyMask,
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    """Gradients of ``q``, ``k`` and ``v``.

    Source: arXiv:2205.14135, Algorithm 4.

    ``grad`` is that of the output, ``[B, T, H, Dv]``; ``o`` and ``lse`` are what :func:`forward`
    returned, with its other arguments; the mask also says which queries see a key. Results have
    shapes and dtypes of their tensors.
    """
    batch, num_queries, num_heads, head_dim = q.shape
    num_keys, num_kv_heads, value_dim = v.shape[1:]
    dq, dk, dv = (torch.empty(x.shape, dtype=x.dtype, device=x.device) for x in (q, k, v))
    grad, q, k, v = (dense_rows(x) for x in (grad, q, k, v))
    o, lse = o.contiguous(), lse.contiguous()
    delta = torch.empty_like(lse)
    strides = (*q.stride()[:3], *k.stride()[:3], *v.stride()[:3], *grad.stride()[:3])
    sizes = (num_queries, num_keys, num_heads, num_heads // num_kv_heads, scale, scale * LOG2_E)
    widths = _widths(head_dim, value_dim)

    config = launch_configs("preprocess", q, value_dim)["preprocess"]
    grid = (triton.cdiv(num_queries, config.block_m), num_heads, batch)
    _softmax_attention_bwd_preprocess_kernel[grid](
        grad, o, delta, *grad.stride()[:3], num_queries, num_heads, VALUE_DIM=value_dim,
        BLOCK_DV=widths["BLOCK_DV"], BLOCK_M=config.block_m, **config.compiler_options,
    )  # fmt: skip
    config = launch_configs("softmax_dkv", q, value_dim)["softmax_dkv"]
    grid = (triton.cdiv(num_keys, config.block_n), num_kv_heads, batch)
    _softmax_attention_bwd_dkv_kernel[grid](
        q, k, v, grad, lse, delta, dk, dv, mask.first, mask.last, mask.begin, mask.end,
        mask.padding, *strides, mask.batch_stride, mask.key_batch_stride, *sizes, **widths,
        **mask.flags, **config.options,
    )  # fmt: skip
    config = launch_configs("softmax_dq", q, value_dim)["softmax_dq"]
    grid = (triton.cdiv(num_queries, config.block_m), num_heads, batch)
    _softmax_attention_bwd_dq_kernel[grid](
        q, k, v, grad, lse, delta, dq, mask.first, mask.last, mask.padding, *strides,
        mask.batch_stride, *sizes, **widths, **mask.flags, **config.options,
    )  # fmt: skip
    return dq, dk, dv


def _widths(head_dim: int, value_dim: int) -> dict[str, int]:
    return {
        "HEAD_DIM": head_dim,
        "VALUE_DIM": value_dim,
        "BLOCK_D": block_width(head_dim),
        "BLOCK_DV": block_width(value_dim),
    }
