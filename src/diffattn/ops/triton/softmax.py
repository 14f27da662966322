"""Softmax attention in the same technique: what differential attention is to be compared with.

One map instead of two; the kernels, their number, their masks and their tiles are otherwise those
of the other modules. Source: arXiv:2205.14135, Algorithm 1.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from diffattn.ops.triton.configs import forward_configs
from diffattn.ops.triton.launch import LOG2_E, KeyMask, dense_rows, widths
from diffattn.ops.triton.tiles import (
    finish_softmax,
    key_bounds,
    keys_of_queries,
    load_real,
    load_tile,
    softmax_step,
    store_tile,
    visible,
)


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
        b_max, b_sum, b_acc = softmax_step(b_s, b_v, b_max, b_sum, b_acc, MASKED)
    return b_max, b_sum, b_acc


@triton.jit
def _softmax_attention_fwd_kernel(
    p_q, p_k, p_v, p_o, p_lse, p_first, p_last, p_padding, p_before,
    stride_qb, stride_qt, stride_qh, stride_kb, stride_ks, stride_kh, stride_vb, stride_vs,
    stride_vh, stride_rb,
    num_queries, num_keys, num_heads, group, scale_log2,
    HEAD_DIM: tl.constexpr, VALUE_DIM: tl.constexpr, BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr, BLOCK_D: tl.constexpr, BLOCK_DV: tl.constexpr, CAUSAL: tl.constexpr,
    RANGES: tl.constexpr, PADDING: tl.constexpr, INFERENCE: tl.constexpr,
):  # fmt: skip
    """O ``[B, T, H, DV]``; for gradients the logs of the rows' sums ``[B, H, T]``, in base 2."""
    i_query = (tl.num_programs(0) - 1 - tl.program_id(0)) * BLOCK_M
    i_head = tl.program_id(1).to(tl.int64)
    i_batch = tl.program_id(2).to(tl.int64)
    i_kv_head = i_head // group
    p_q += i_batch * stride_qb + i_head * stride_qh
    p_k += i_batch * stride_kb + i_kv_head * stride_kh
    p_v += i_batch * stride_vb + i_kv_head * stride_vh
    p_o += (i_batch * num_queries * num_heads + i_head) * VALUE_DIM
    if RANGES:
        p_first += i_batch * stride_rb
        p_last += i_batch * stride_rb
    if PADDING:
        p_padding += i_batch * num_keys
        p_before += i_batch * (num_keys + 1)

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
    bounds = key_bounds(
        p_first, p_last, p_before, i_query, num_queries, num_keys, CAUSAL, RANGES, PADDING,
        BLOCK_M, BLOCK_N,
    )  # fmt: skip
    for i_part in tl.static_range(0 if RANGES else 1, 3):
        b_max, b_sum, b_acc = fold_keys(
            b_q, b_max, b_sum, b_acc, p_k, p_v, p_padding, b_first, b_last, bounds[i_part],
            bounds[i_part + 1], stride_ks, stride_vs, num_keys, scale_log2, HEAD_DIM, VALUE_DIM,
            BLOCK_N, BLOCK_D, BLOCK_DV, RANGES, PADDING, i_part != 1,
        )  # fmt: skip
    b_o, b_lse = finish_softmax(b_max, b_sum, b_acc)
    stride_o = num_heads * VALUE_DIM
    store_tile(p_o, i_query, b_o, stride_o, num_queries, BLOCK_M, VALUE_DIM, BLOCK_DV)
    if not INFERENCE:
        p_lse += (i_batch * num_heads + i_head) * num_queries
        tl.store(p_lse + b_queries, b_lse, mask=b_queries < num_queries)


def forward(
    q: Tensor, k: Tensor, v: Tensor, *, scale: float, mask: KeyMask, inference: bool = False
) -> tuple[Tensor, Tensor]:
    """Output and the logarithms of the softmax sums.

    Source: arXiv:1706.03762, Eq. (1).

    Arguments as in :func:`diffattn.ops.backends.custom_op.softmax_attention`, the mask as the
    kernels read it. For ``inference`` the output alone is written.

    Returns:
        ``[B, T, H, Dv]`` in the dtype of ``q``, and float32 ``[B, H, T]``, in base 2; the latter
        is empty in inference.
    """
    batch, num_queries, num_heads, head_dim = q.shape
    num_keys, num_kv_heads, value_dim = v.shape[1:]
    q, k, v = dense_rows(q), dense_rows(k), dense_rows(v)
    o = torch.empty(batch, num_queries, num_heads, value_dim, dtype=q.dtype, device=q.device)
    sums = (0,) if inference else (batch, num_heads, num_queries)
    lse = torch.empty(sums, dtype=torch.float32, device=q.device)
    config = forward_configs("softmax_", q, value_dim)["fwd"]
    grid = (triton.cdiv(num_queries, config.block_m), num_heads, batch)
    _softmax_attention_fwd_kernel[grid](
        q, k, v, o, lse, *mask.of_queries, *q.stride()[:3], *k.stride()[:3], *v.stride()[:3],
        mask.batch_stride, num_queries, num_keys, num_heads, num_heads // num_kv_heads,
        scale * LOG2_E, **widths(head_dim, value_dim), **mask.flags,
        INFERENCE=inference, **config.options,
    )  # fmt: skip
    return o, lse
