"""The backward pass of differential attention: row sums, then dK and dV, then dQ.

If the kernel for dK and dV does not compute dQ, a second kernel does. In it no two programs add to
one number, so results do not depend on the order in which programs run. Softmax attention, the
baseline, is the case of one map. Source: arXiv:2410.05258v2, Appendix G; the two-kernel form is
that of arXiv:2205.14135, Algorithm 4.
"""

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from diffattn.ops.triton.backward_keys import _diff_attention_bwd_dkv_kernel
from diffattn.ops.triton.configs import GRADIENTS, PREPROCESS, LaunchConfig, backward_configs
from diffattn.ops.triton.launch import (
    LOG2_E,
    KeyMask,
    batch_stride,
    block_width,
    dense_rows,
    group_splits,
    num_blocks,
    run_kernel,
    strides_of,
    widths,
)
from diffattn.ops.triton.tiles import (
    keys_of_block,
    load_numbers,
    load_real,
    load_tile,
    load_tiles,
    store_tile,
    visible,
)


@triton.jit
def _diff_attention_bwd_preprocess_kernel(
    p_do, p_o, p_o2, p_lam, p_delta, p_dlam,
    stride_gb, stride_gt, stride_gh, stride_lb, stride_lt, stride_lh,
    num_queries, num_heads,
    VALUE_DIM: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_DV: tl.constexpr,
    NUM_MAPS: tl.constexpr,
):  # fmt: skip
    """D2 = rowsum(dO O2), D1 = rowsum(dO O) + λ D2 ``[B, H, maps, T]``; dλ = -D2 ``[B, T, H]``."""
    i_query = tl.program_id(0) * BLOCK_M
    i_head = tl.program_id(1).to(tl.int64)
    i_batch = tl.program_id(2).to(tl.int64)
    i_row = i_batch * num_queries * num_heads + i_head
    b_queries = i_query + tl.arange(0, BLOCK_M)
    m_queries = b_queries < num_queries
    p_do += i_batch * stride_gb + i_head * stride_gh
    b_do = load_tile(p_do, i_query, stride_gt, num_queries, BLOCK_M, VALUE_DIM, BLOCK_DV, True)
    b_do = b_do.to(tl.float32)  # [M, DV]
    stride_o = num_heads * VALUE_DIM
    p_o += i_row * VALUE_DIM
    b_o = load_tile(p_o, i_query, stride_o, num_queries, BLOCK_M, VALUE_DIM, BLOCK_DV, True)
    if NUM_MAPS == 2:
        p_o2 += i_row * VALUE_DIM
        b_o2 = load_tile(p_o2, i_query, stride_o, num_queries, BLOCK_M, VALUE_DIM, BLOCK_DV, True)
        p_lam += i_batch * stride_lb + i_head * stride_lh
        b_lam = tl.load(p_lam + b_queries.to(tl.int64) * stride_lt, mask=m_queries, other=0.0)
        b_delta2 = tl.sum(b_do * b_o2.to(tl.float32), 1)
    b_delta1 = tl.sum(b_do * b_o.to(tl.float32), 1)
    if NUM_MAPS == 2:
        b_delta1 += b_lam * b_delta2
    p_delta += (i_batch * num_heads + i_head) * NUM_MAPS * num_queries
    tl.store(p_delta + b_queries, b_delta1, mask=m_queries)
    if NUM_MAPS == 2:
        tl.store(p_delta + num_queries + b_queries, b_delta2, mask=m_queries)
        p_dlam += i_row + b_queries.to(tl.int64) * num_heads
        tl.store(p_dlam, -b_delta2, mask=m_queries)


@triton.jit
def _fold_keys(
    b_dq1, b_dq2, b_q1, b_q2, b_do, b_lse1, b_lse2, b_delta1, b_delta2, p_k, p_v, p_padding,
    b_first, b_last, start, stop,
    stride_ks, stride_km, stride_vs,
    num_keys, scale_log2,
    HEAD_DIM: tl.constexpr, VALUE_DIM: tl.constexpr, BLOCK_N: tl.constexpr,
    BLOCK_D: tl.constexpr, BLOCK_DV: tl.constexpr, NUM_MAPS: tl.constexpr,
    SHARED_KEYS: tl.constexpr, RANGES: tl.constexpr, PADDING: tl.constexpr, MASKED: tl.constexpr,
):  # fmt: skip
    """Add the terms of keys in [start, stop) to dQ, without the factors s and -λ s."""
    for i_key in range(start, stop, BLOCK_N):
        b_keys = i_key + tl.arange(0, BLOCK_N)
        b_k1, b_k2 = load_tiles(
            p_k, i_key, stride_ks, stride_km, num_keys, BLOCK_N, HEAD_DIM, BLOCK_D, MASKED,
            not SHARED_KEYS,
        )  # [N, D] each  # fmt: skip
        b_s1 = tl.dot(b_q1, tl.trans(b_k1), input_precision="ieee") * scale_log2  # [M, N]
        b_s2 = b_s1
        if NUM_MAPS == 2:
            b_s2 = tl.dot(b_q2, tl.trans(b_k2), input_precision="ieee") * scale_log2
        if MASKED:
            m_real = load_real(p_padding, b_keys, num_keys, PADDING)
            m_seen = visible(
                b_keys[None, :], m_real[None, :], b_first[:, None], b_last[:, None], RANGES
            )
            b_s1 = tl.where(m_seen, b_s1, float("-inf"))
            b_s2 = tl.where(m_seen, b_s2, float("-inf"))
        b_v = load_tile(
            p_v, i_key, stride_vs, num_keys, BLOCK_N, VALUE_DIM, BLOCK_DV, MASKED
        )  # [N, DV]
        b_dp = tl.dot(b_do, tl.trans(b_v), input_precision="ieee")  # [M, N]
        b_ds1 = tl.exp2(b_s1 - b_lse1[:, None]) * (b_dp - b_delta1[:, None])
        b_dq1 = tl.dot(b_ds1.to(b_k1.dtype), b_k1, b_dq1, input_precision="ieee")  # [M, D]
        if NUM_MAPS == 2:
            b_ds2 = tl.exp2(b_s2 - b_lse2[:, None]) * (b_dp - b_delta2[:, None])
            b_dq2 = tl.dot(b_ds2.to(b_k2.dtype), b_k2, b_dq2, input_precision="ieee")
    return b_dq1, b_dq2


@triton.jit
def _diff_attention_bwd_dq_kernel(
    p_q, p_k, p_v, p_lam, p_do, p_lse, p_delta, p_dq, p_first, p_last, p_padding, p_before,
    stride_qb, stride_qt, stride_qh, stride_qm, stride_kb, stride_ks, stride_kh, stride_km,
    stride_vb, stride_vs, stride_vh, stride_lb, stride_lt, stride_lh, stride_gb, stride_gt,
    stride_gh, stride_rb,
    num_queries, num_keys, num_heads, group, scale, scale_log2,
    HEAD_DIM: tl.constexpr, VALUE_DIM: tl.constexpr, BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr, BLOCK_D: tl.constexpr, BLOCK_DV: tl.constexpr,
    NUM_MAPS: tl.constexpr, SHARED_KEYS: tl.constexpr, CAUSAL: tl.constexpr,
    RANGES: tl.constexpr, PADDING: tl.constexpr,
):  # fmt: skip
    """dQ of every map for a block of queries."""
    i_query = (tl.num_programs(0) - 1 - tl.program_id(0)) * BLOCK_M
    i_head = tl.program_id(1).to(tl.int64)
    i_batch = tl.program_id(2).to(tl.int64)
    i_kv_head = i_head // group
    p_q += i_batch * stride_qb + i_head * stride_qh
    p_k += i_batch * stride_kb + i_kv_head * stride_kh
    p_v += i_batch * stride_vb + i_kv_head * stride_vh
    if NUM_MAPS == 2:
        p_lam += i_batch * stride_lb + i_head * stride_lh
    p_do += i_batch * stride_gb + i_head * stride_gh
    p_lse += (i_batch * num_heads + i_head) * NUM_MAPS * num_queries
    p_delta += (i_batch * num_heads + i_head) * NUM_MAPS * num_queries
    p_dq += (i_batch * num_queries * num_heads + i_head) * NUM_MAPS * HEAD_DIM
    if RANGES:
        p_first += i_batch * stride_rb
        p_last += i_batch * stride_rb
    if PADDING:
        p_padding += i_batch * num_keys
        p_before += i_batch * (num_keys + 1)

    b_queries = i_query + tl.arange(0, BLOCK_M)
    b_q1, b_q2 = load_tiles(
        p_q, i_query, stride_qt, stride_qm, num_queries, BLOCK_M, HEAD_DIM, BLOCK_D, True,
        NUM_MAPS == 2,
    )  # [M, D] each  # fmt: skip
    b_do = load_tile(p_do, i_query, stride_gt, num_queries, BLOCK_M, VALUE_DIM, BLOCK_DV, True)
    b_lse1, b_lse2 = load_numbers(p_lse, b_queries, num_queries, float("inf"), NUM_MAPS == 2)
    b_delta1, b_delta2 = load_numbers(p_delta, b_queries, num_queries, 0.0, NUM_MAPS == 2)
    b_dq1 = tl.zeros([BLOCK_M, BLOCK_D], tl.float32)
    b_dq2 = tl.zeros([BLOCK_M, BLOCK_D], tl.float32)

    b_first, b_last, start, full, edge, stop = keys_of_block(
        p_first, p_last, p_before, i_query, num_queries, num_keys, CAUSAL, RANGES, PADDING,
        BLOCK_M, BLOCK_N,
    )  # fmt: skip
    bounds = (start, full, edge, stop)
    for i_part in tl.static_range(0 if RANGES else 1, 3):
        b_dq1, b_dq2 = _fold_keys(
            b_dq1, b_dq2, b_q1, b_q2, b_do, b_lse1, b_lse2, b_delta1, b_delta2, p_k, p_v,
            p_padding, b_first, b_last, bounds[i_part], bounds[i_part + 1], stride_ks, stride_km,
            stride_vs, num_keys, scale_log2, HEAD_DIM, VALUE_DIM, BLOCK_N, BLOCK_D, BLOCK_DV,
            NUM_MAPS, SHARED_KEYS, RANGES, PADDING, i_part != 1,
        )  # fmt: skip

    _store_dq(
        p_dq, p_lam, i_query, b_dq1, b_dq2, num_heads * NUM_MAPS * HEAD_DIM, stride_lt,
        num_queries, scale, HEAD_DIM, NUM_MAPS,
    )  # fmt: skip


@triton.jit
def _store_dq(
    p_dq, p_lam, i_query, b_dq1, b_dq2, stride_dq, stride_lt, num_queries, scale,
    HEAD_DIM: tl.constexpr, NUM_MAPS: tl.constexpr,
):  # fmt: skip
    """Write dQ times s; dQ of map 2 also times -λ."""
    store_tile(p_dq, i_query, b_dq1 * scale, stride_dq, num_queries, HEAD_DIM)
    if NUM_MAPS == 2:
        b_queries = i_query + tl.arange(0, b_dq2.shape[0])
        m_queries = b_queries < num_queries
        b_lam = tl.load(p_lam + b_queries.to(tl.int64) * stride_lt, mask=m_queries, other=0.0)
        b_dq2 = b_dq2 * (-scale * b_lam)[:, None]
        p_dq2 = p_dq + HEAD_DIM
        store_tile(p_dq2, i_query, b_dq2, stride_dq, num_queries, HEAD_DIM)


def backward(
    grad: Tensor,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    lam: Tensor | None,
    o: Tensor,
    o2: Tensor,
    lse: Tensor,
    *,
    scale: float,
    mask: KeyMask,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    r"""Gradients of ``q``, ``k``, ``v`` and λ.

    .. math:: dS_1 = A_1 (dP - D_1),\quad dS_2 = -\lambda A_2 (dP - D_2),\quad
              dV = (A_1 - \lambda A_2)^\top dO,\quad d\lambda = -D_2

    Source: arXiv:2410.05258v2, Appendix G.

    ``grad`` is the gradient of the output. All others are arguments and results of
    :func:`diffattn.ops.triton.forward.forward`; ``mask`` is made with ``gradient=True``. Results
    have the shapes and dtypes of their tensors; without λ its gradient is ``[B, T, H, 0]``.
    """
    batch, num_queries, num_heads, num_maps, head_dim = q.shape
    num_keys, num_kv_heads, value_dim = v.shape[1:]
    grad, q, k, v = (dense_rows(x) for x in (grad, q, k, v))
    lse = lse.contiguous()
    wide_lam = None if lam is None else lam.expand(batch, num_queries, num_heads)
    shared_keys = k.ndim == 4
    constants = {"NUM_MAPS": num_maps, "SHARED_KEYS": shared_keys}
    constants |= widths(head_dim, value_dim) | mask.flags
    strides = (*strides_of(q, k, v, wide_lam), *grad.stride()[:3], batch_stride(mask.first))
    sizes = (num_queries, num_keys, num_heads, num_heads // num_kv_heads, scale, scale * LOG2_E)
    delta, dlam = _row_sums(grad, o.contiguous(), o2.contiguous(), wide_lam, lse, strides[11:14])
    read = (q, k, v, wide_lam, grad, lse, delta)
    op, padding = "" if num_maps == 2 else "softmax_", mask.padding is not None
    configs = backward_configs(op, q, value_dim, shared_keys=shared_keys, padding=padding)
    gradients: dict[str, Tensor] = {}
    for launch, config in configs.items():
        if launch != "dq":
            gradients |= _gradients_by_keys(launch, config, read, mask, strides, sizes, constants)
            continue
        dq = torch.empty(q.shape, dtype=q.dtype, device=q.device)
        grid = (num_blocks(num_queries, config.block_m), num_heads, batch)
        run_kernel(
            _diff_attention_bwd_dq_kernel, grid,
            (*read, dq, mask.first, mask.last, mask.padding, mask.before),
            (*strides, *sizes), **constants, **config.options,
        )  # fmt: skip
    if "DQ" in gradients:
        dq = gradients["DQ"].mul_(scale).to(q.dtype)
    dlam = dlam if lam is None else dlam.sum_to_size(lam.shape)
    return dq, gradients["DK"], gradients["DV"], dlam


def _gradients_by_keys(
    launch: str,
    config: LaunchConfig,
    read: tuple[Any, ...],
    mask: KeyMask,
    strides: tuple[int, ...],
    sizes: tuple[float, ...],
    constants: dict[str, int],
) -> dict[str, Tensor]:
    """Gradients of a launch with a program per block of keys. Parts of dK and dV are summed in a
    fixed order. dQ is float32, without the factor s."""
    q, k, v = read[:3]
    batch, num_keys, num_kv_heads = v.shape[:3]
    blocks = num_blocks(num_keys, config.block_n)
    splits = group_splits(q.shape[2] // num_kv_heads, blocks * num_kv_heads * batch, q.device)
    dtype = k.dtype if splits == 1 else torch.float32
    parts = {
        name: torch.empty(splits, *x.shape, dtype=dtype, device=x.device)
        for name, x in (("DK", k), ("DV", v))
        if name in GRADIENTS[launch]
    }
    summed = {}
    if "DQ" in GRADIENTS[launch]:
        summed["DQ"] = torch.zeros(q.shape, dtype=torch.float32, device=q.device)
    run_kernel(
        _diff_attention_bwd_dkv_kernel, (blocks, num_kv_heads * splits, batch),
        (*read, parts.get("DK"), parts.get("DV"), summed.get("DQ"), mask.first, mask.last,
         mask.begin, mask.end, mask.padding, mask.before),
        (*strides, batch_stride(mask.begin), *sizes, batch, splits),
        **constants, WITH_DK="DK" in parts, WITH_DV="DV" in parts, WITH_DQ="DQ" in summed,
        **config.options,
    )  # fmt: skip
    for name, x in parts.items():
        summed[name] = x[0] if splits == 1 else x.sum(0).to(k.dtype)
    return summed


def _row_sums(
    grad: Tensor,
    o: Tensor,
    o2: Tensor,
    lam: Tensor | None,
    lse: Tensor,
    lam_strides: tuple[int, ...],
) -> tuple[Tensor, Tensor]:
    """D1 and D2 in the shape of ``lse``, and dλ ``[B, T, H]``, or ``[B, T, H, 0]`` without λ."""
    batch, num_queries, num_heads, value_dim = grad.shape
    rows = (batch, num_queries, num_heads) + ((0,) if lam is None else ())
    delta, dlam = torch.empty_like(lse), lse.new_empty(rows)
    grid = (num_blocks(num_queries, PREPROCESS.block_m), num_heads, batch)
    run_kernel(
        _diff_attention_bwd_preprocess_kernel, grid,
        (grad, o, o2, lam, delta, dlam),
        (*grad.stride()[:3], *lam_strides, num_queries, num_heads),
        VALUE_DIM=value_dim, BLOCK_DV=block_width(value_dim), BLOCK_M=PREPROCESS.block_m,
        NUM_MAPS=lse.shape[2], **PREPROCESS.compiler_options,
    )  # fmt: skip
    return delta, dlam
