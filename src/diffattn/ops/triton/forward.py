"""Forward kernel of differential attention: one pass over the keys for both maps, or one per map.

In one pass each tile of V is loaded once and multiplied with the weights of both maps. The sums
that normalise the maps are known only after the last key, so there are two accumulators. If they
do not fit the registers at a useful tile size, a pass for map 2 is followed by one for map 1. It
has the same products, but loads V twice, and twice as many queries share a tile of keys.
Softmax attention, the baseline, is the case of one map.
Source: arXiv:2410.05258v2, Eq. (1); the online softmax is that of arXiv:2205.14135, Algorithm 1.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from diffattn.ops.triton.configs import forward_configs
from diffattn.ops.triton.launch import (
    LOG2_E,
    KeyMask,
    batch_stride,
    dense_rows,
    num_blocks,
    run_kernel,
    strides_of,
    widths,
)
from diffattn.ops.triton.tiles import (
    finish_softmax,
    keys_of_block,
    load_real,
    load_tile,
    load_tiles,
    softmax_step,
    store_tile,
    visible,
)


@triton.jit
def _fold_keys(
    b_q1, b_q2, b_max1, b_sum1, b_acc1, b_max2, b_sum2, b_acc2, p_k, p_v, p_padding, b_first,
    b_last, start, stop,
    stride_ks, stride_km, stride_vs,
    num_keys, scale_log2,
    HEAD_DIM: tl.constexpr, VALUE_DIM: tl.constexpr, BLOCK_N: tl.constexpr,
    BLOCK_D: tl.constexpr, BLOCK_DV: tl.constexpr, NUM_MAPS: tl.constexpr,
    SHARED_KEYS: tl.constexpr, RANGES: tl.constexpr, PADDING: tl.constexpr, MASKED: tl.constexpr,
):  # fmt: skip
    """Add the keys in [start, stop) to the online softmax of every map."""
    for i_key in range(start, stop, BLOCK_N):
        b_keys = i_key + tl.arange(0, BLOCK_N)
        b_k = load_tile(
            p_k, i_key, stride_ks, num_keys, BLOCK_N, HEAD_DIM, BLOCK_D, MASKED
        )  # [N, D]
        b_s1 = tl.dot(b_q1, tl.trans(b_k), input_precision="ieee") * scale_log2  # [M, N]
        b_s2 = b_s1
        if NUM_MAPS == 2:
            if not SHARED_KEYS:
                b_k = load_tile(
                    p_k + stride_km, i_key, stride_ks, num_keys, BLOCK_N, HEAD_DIM, BLOCK_D, MASKED
                )
            b_s2 = tl.dot(b_q2, tl.trans(b_k), input_precision="ieee") * scale_log2
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
        b_max1, b_sum1, b_acc1 = softmax_step(b_s1, b_v, b_max1, b_sum1, b_acc1, MASKED)
        if NUM_MAPS == 2:
            b_max2, b_sum2, b_acc2 = softmax_step(b_s2, b_v, b_max2, b_sum2, b_acc2, MASKED)
    return b_max1, b_sum1, b_acc1, b_max2, b_sum2, b_acc2


@triton.jit
def _attend(
    p_q, p_k, p_v, p_padding, i_query, b_first, b_last, bounds,
    stride_qt, stride_qm, stride_ks, stride_km, stride_vs,
    num_queries, num_keys, scale_log2,
    HEAD_DIM: tl.constexpr, VALUE_DIM: tl.constexpr, BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr, BLOCK_D: tl.constexpr, BLOCK_DV: tl.constexpr,
    NUM_MAPS: tl.constexpr, SHARED_KEYS: tl.constexpr, RANGES: tl.constexpr,
    PADDING: tl.constexpr,
):  # fmt: skip
    """Outputs ``[M, DV]`` and log row sums of both maps; of one map, everything twice."""
    b_q1, b_q2 = load_tiles(
        p_q, i_query, stride_qt, stride_qm, num_queries, BLOCK_M, HEAD_DIM, BLOCK_D, True,
        NUM_MAPS == 2,
    )  # [M, D] each  # fmt: skip
    b_max1 = tl.full([BLOCK_M], float("-inf"), tl.float32)
    b_max2 = tl.full([BLOCK_M], float("-inf"), tl.float32)
    b_sum1 = tl.zeros([BLOCK_M], tl.float32)
    b_sum2 = tl.zeros([BLOCK_M], tl.float32)
    b_acc1 = tl.zeros([BLOCK_M, BLOCK_DV], tl.float32)
    b_acc2 = tl.zeros([BLOCK_M, BLOCK_DV], tl.float32)
    for i_part in tl.static_range(0 if RANGES else 1, 3):
        b_max1, b_sum1, b_acc1, b_max2, b_sum2, b_acc2 = _fold_keys(
            b_q1, b_q2, b_max1, b_sum1, b_acc1, b_max2, b_sum2, b_acc2, p_k, p_v, p_padding,
            b_first, b_last, bounds[i_part], bounds[i_part + 1], stride_ks, stride_km,
            stride_vs, num_keys, scale_log2, HEAD_DIM, VALUE_DIM, BLOCK_N, BLOCK_D, BLOCK_DV,
            NUM_MAPS, SHARED_KEYS, RANGES, PADDING, i_part != 1,
        )  # fmt: skip
    b_o1, b_lse1 = finish_softmax(b_max1, b_sum1, b_acc1)
    b_o2, b_lse2 = b_o1, b_lse1
    if NUM_MAPS == 2:
        b_o2, b_lse2 = finish_softmax(b_max2, b_sum2, b_acc2)
    return b_o1, b_lse1, b_o2, b_lse2


@triton.jit
def _attend_map_by_map(
    p_q, p_k, p_v, p_o, p_padding, i_query, b_first, b_last, bounds,
    stride_qt, stride_qm, stride_ks, stride_km, stride_vs, stride_o,
    num_queries, num_keys, scale_log2,
    HEAD_DIM: tl.constexpr, VALUE_DIM: tl.constexpr, BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr, BLOCK_D: tl.constexpr, BLOCK_DV: tl.constexpr,
    RANGES: tl.constexpr, PADDING: tl.constexpr,
):  # fmt: skip
    """Results of :func:`_attend` for both maps, in two passes over the keys: map 2, then map 1."""
    b_o2, b_lse2, _, _ = _attend(
        p_q + stride_qm, p_k + stride_km, p_v, p_padding, i_query, b_first, b_last, bounds,
        stride_qt, stride_qm, stride_ks, stride_km, stride_vs, num_queries, num_keys,
        scale_log2, HEAD_DIM, VALUE_DIM, BLOCK_M, BLOCK_N, BLOCK_D, BLOCK_DV, 1, True, RANGES,
        PADDING,
    )  # fmt: skip
    # O2 is kept in the memory of O. A barrier, as other threads may read it than have written it.
    store_tile(p_o, i_query, b_o2, stride_o, num_queries, VALUE_DIM)
    tl.debug_barrier()
    b_o1, b_lse1, _, _ = _attend(
        p_q, p_k, p_v, p_padding, i_query, b_first, b_last, bounds,
        stride_qt, stride_qm, stride_ks, stride_km, stride_vs, num_queries, num_keys,
        scale_log2, HEAD_DIM, VALUE_DIM, BLOCK_M, BLOCK_N, BLOCK_D, BLOCK_DV, 1, True, RANGES,
        PADDING,
    )  # fmt: skip
    b_o2 = load_tile(p_o, i_query, stride_o, num_queries, BLOCK_M, VALUE_DIM, BLOCK_DV, True)
    tl.debug_barrier()
    return b_o1, b_lse1, b_o2.to(tl.float32), b_lse2


@triton.jit
def _diff_attention_fwd_kernel(
    p_q, p_k, p_v, p_lam, p_o, p_o2, p_lse, p_first, p_last, p_padding, p_before,
    stride_qb, stride_qt, stride_qh, stride_qm, stride_kb, stride_ks, stride_kh, stride_km,
    stride_vb, stride_vs, stride_vh, stride_lb, stride_lt, stride_lh, stride_rb,
    num_queries, num_keys, num_heads, group, scale_log2,
    HEAD_DIM: tl.constexpr, VALUE_DIM: tl.constexpr, BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr, BLOCK_D: tl.constexpr, BLOCK_DV: tl.constexpr,
    NUM_MAPS: tl.constexpr, SHARED_KEYS: tl.constexpr, CAUSAL: tl.constexpr,
    RANGES: tl.constexpr, PADDING: tl.constexpr, MAP_BY_MAP: tl.constexpr,
    INFERENCE: tl.constexpr,
):  # fmt: skip
    """O ``[B, T, H, DV]``; for gradients also O2, and the logarithms in base 2 of the row sums
    ``[B, H, maps, T]``."""
    # The last queries see the most keys under a causal mask: start with them.
    i_query = (tl.num_programs(0) - 1 - tl.program_id(0)) * BLOCK_M
    i_head = tl.program_id(1).to(tl.int64)
    i_batch = tl.program_id(2).to(tl.int64)
    i_kv_head = i_head // group
    p_q += i_batch * stride_qb + i_head * stride_qh
    p_k += i_batch * stride_kb + i_kv_head * stride_kh
    p_v += i_batch * stride_vb + i_kv_head * stride_vh
    if NUM_MAPS == 2:
        p_lam += i_batch * stride_lb + i_head * stride_lh
    p_o += (i_batch * num_queries * num_heads + i_head) * VALUE_DIM
    if RANGES:
        p_first += i_batch * stride_rb
        p_last += i_batch * stride_rb
    if PADDING:
        p_padding += i_batch * num_keys
        p_before += i_batch * (num_keys + 1)

    b_first, b_last, start, full, edge, stop = keys_of_block(
        p_first, p_last, p_before, i_query, num_queries, num_keys, CAUSAL, RANGES, PADDING,
        BLOCK_M, BLOCK_N,
    )  # fmt: skip
    bounds = (start, full, edge, stop)
    stride_o = num_heads * VALUE_DIM
    if MAP_BY_MAP:
        b_o1, b_lse1, b_o2, b_lse2 = _attend_map_by_map(
            p_q, p_k, p_v, p_o, p_padding, i_query, b_first, b_last, bounds,
            stride_qt, stride_qm, stride_ks, stride_km, stride_vs, stride_o, num_queries, num_keys,
            scale_log2, HEAD_DIM, VALUE_DIM, BLOCK_M, BLOCK_N, BLOCK_D, BLOCK_DV, RANGES, PADDING,
        )  # fmt: skip
    else:
        b_o1, b_lse1, b_o2, b_lse2 = _attend(
            p_q, p_k, p_v, p_padding, i_query, b_first, b_last, bounds,
            stride_qt, stride_qm, stride_ks, stride_km, stride_vs, num_queries, num_keys,
            scale_log2, HEAD_DIM, VALUE_DIM, BLOCK_M, BLOCK_N, BLOCK_D, BLOCK_DV, NUM_MAPS,
            SHARED_KEYS, RANGES, PADDING,
        )  # fmt: skip
    _store_outputs(
        p_o, p_o2, p_lse, p_lam, i_query, i_batch, i_head, b_o1, b_o2, b_lse1, b_lse2,
        stride_lt, num_queries, num_heads, VALUE_DIM, NUM_MAPS, INFERENCE,
    )  # fmt: skip


@triton.jit
def _store_outputs(
    p_o, p_o2, p_lse, p_lam, i_query, i_batch, i_head, b_o1, b_o2, b_lse1, b_lse2,
    stride_lt, num_queries, num_heads,
    VALUE_DIM: tl.constexpr, NUM_MAPS: tl.constexpr, INFERENCE: tl.constexpr,
):  # fmt: skip
    """Write O = O1 - λ O2; for gradients also O2 and the logarithms of the row sums."""
    b_queries = i_query + tl.arange(0, b_o1.shape[0])
    m_queries = b_queries < num_queries
    stride_o = num_heads * VALUE_DIM
    b_o = b_o1
    if NUM_MAPS == 2:
        b_lam = tl.load(p_lam + b_queries.to(tl.int64) * stride_lt, mask=m_queries, other=0.0)
        b_o = b_o1 - b_lam[:, None] * b_o2
    store_tile(p_o, i_query, b_o, stride_o, num_queries, VALUE_DIM)
    if not INFERENCE:
        if NUM_MAPS == 2:
            p_o2 += (i_batch * num_queries * num_heads + i_head) * VALUE_DIM
            store_tile(p_o2, i_query, b_o2, stride_o, num_queries, VALUE_DIM)
        p_lse += (i_batch * num_heads + i_head) * NUM_MAPS * num_queries
        tl.store(p_lse + b_queries, b_lse1, mask=m_queries)
        if NUM_MAPS == 2:
            tl.store(p_lse + num_queries + b_queries, b_lse2, mask=m_queries)


def forward(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    lam: Tensor | None,
    *,
    scale: float,
    mask: KeyMask,
    inference: bool = False,
) -> tuple[Tensor, Tensor, Tensor]:
    r"""Output, O2 = A2 V and the logarithms of the softmax sums.

    .. math:: O = A_1 V - \lambda A_2 V

    Arguments as in :func:`diffattn.ops.backends.custom_op.diff_attention`, but ``mask`` is a
    :class:`KeyMask`. Without λ it is softmax attention with one map: ``q`` ``[B, T, H, 1, D]`` and
    ``k`` ``[B, S, Hkv, D]``.

    O and O2 are ``[B, T, H, Dv]`` in the dtype of ``q``; O2 is ``[B, T, H, 0]`` without λ. The
    logarithms, float32 ``[B, H, maps, T]``, are in base 2, +inf for a row without keys. With
    ``inference`` the last two are empty.

    Source: arXiv:2410.05258v2, Eq. (1).
    """
    batch, num_queries, num_heads, num_maps, head_dim = q.shape
    num_keys, num_kv_heads, value_dim = v.shape[1:]
    q, k, v = dense_rows(q), dense_rows(k), dense_rows(v)
    lam = None if lam is None else lam.expand(batch, num_queries, num_heads)
    o = torch.empty(batch, num_queries, num_heads, value_dim, dtype=q.dtype, device=q.device)
    o2 = o.new_empty(0) if inference else torch.empty_like(o if num_maps == 2 else o[..., :0])
    sums = (0,) if inference else (batch, num_heads, num_maps, num_queries)
    lse = torch.empty(sums, dtype=torch.float32, device=q.device)
    op = "" if num_maps == 2 else "softmax_"
    ((launch, config),) = forward_configs(op, q, value_dim, shared_keys=k.ndim == 4).items()
    grid = (num_blocks(num_queries, config.block_m), num_heads, batch)
    run_kernel(
        _diff_attention_fwd_kernel, grid,
        (q, k, v, lam, o, o2, lse, mask.first, mask.last, mask.padding, mask.before),
        (*strides_of(q, k, v, lam), batch_stride(mask.first),
         num_queries, num_keys, num_heads, num_heads // num_kv_heads, scale * LOG2_E),
        **widths(head_dim, value_dim), NUM_MAPS=num_maps, SHARED_KEYS=k.ndim == 4,
        MAP_BY_MAP=launch == "fwd_by_map", INFERENCE=inference, **mask.flags, **config.options,
    )  # fmt: skip
    return o, o2, lse
