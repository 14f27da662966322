"""Split-KV decode: few queries against a long cache, with K1, K2 and V read once.

A program handles one batch row, one key/value head, one block of rows and one part of the keys. The
rows are all queries of all query heads that read this key/value head, with both maps adjacent: row
2 r + m is map m of pair r = t G + g, for query t and query head g of G. If maps have different
keys, the rows of map 0 are zero in the channels of K2, and the rows of map 1 in those of K1. Then
one product with the cache's rows ``[K1 K2]`` gives both maps. The extra zeros cost nothing, as a
tensor-core tile has 16 rows anyway. A second kernel merges the parts and subtracts the maps.
Softmax attention, the baseline, has one map: half the rows, and nothing to subtract. In a paged
cache the block table gives a key's page, and the stride of pages replaces that of batch rows.
"""

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from diffattn.ops.inputs.masking import CAUSAL, AttentionMask
from diffattn.ops.triton.configs import FP_FUSION, num_multiprocessors
from diffattn.ops.triton.launch import LOG2_E, dense_rows, num_blocks, run_kernel, strides_of

_KEYS_PER_SPLIT = 128
"""Smallest part of the keys: merging a shorter part costs more than it saves."""
_MAX_SPLITS = 256
TABLE_STAGES = 2
"""Extra pipeline stages of a paged launch. Loads of pages must wait for loads of the table; with
these stages a paged launch has as many buffers for K and V as a dense one."""
LARGE_SHARED_BYTES, SMALL_SHARED_BYTES = 166_912, 101_376
"""Bytes of shared memory per program: the least of large chips (8.0, 9.0, 10.0); of small ones."""
GROWING = ("num_keys", "num_splits", "num_pages", "stride_tb", "stride_pb", "window")
"""Arguments that grow with a cache. Triton must not compile special forms for 1 and multiples of 16
of them: it would do so while text is generated, and gain nothing."""


@triton.jit
def _seen_keys(i_t, length, num_queries, window, CAUSAL: tl.constexpr, WINDOWED: tl.constexpr):
    """The keys ``first <= j < last`` that query ``i_t`` sees, as in ``AttentionMask.key_ranges``.

    Computed here, because small kernels to compute them beforehand take longer than this kernel.
    """
    first = i_t * 0
    last = first + length
    if CAUSAL or WINDOWED:
        position = i_t + length - num_queries
        last = tl.minimum(last, tl.maximum(position + 1, 0))
        if WINDOWED:
            first = tl.maximum(position + 1 - window, 0)
    return first, last


@triton.jit
def _key_places(i_b, keys, m_keys, p_table, stride_tb, num_pages, PAGE_SIZE: tl.constexpr):
    """Indices of keys along the cache's first and second axis, int64."""
    if PAGE_SIZE == 0:
        i_first = i_b
        i_second = keys
    else:
        i_page = tl.load(p_table + i_b * stride_tb + keys // PAGE_SIZE, mask=m_keys, other=0)
        # The table is not checked on a device, so clamp: no other memory must be read.
        i_first = tl.minimum(tl.maximum(i_page, 0), num_pages - 1).to(tl.int64)
        i_second = keys % PAGE_SIZE
    return i_first, i_second.to(tl.int64)


@triton.jit(do_not_specialize=GROWING)
def _diff_attention_decode_kernel(
    p_q, p_k, p_v, p_table, p_lengths, p_padding, p_acc, p_max, p_sum,
    stride_qb, stride_qt, stride_qh, stride_qm,
    stride_kb, stride_ks, stride_kh, stride_km,
    stride_vb, stride_vs, stride_vh,
    stride_tb, stride_pb, window, scale_log2,
    num_queries, num_keys, num_kv_heads, num_splits, num_pages,
    NUM_MAPS: tl.constexpr, GROUP: tl.constexpr, HEAD_DIM: tl.constexpr, VALUE_DIM: tl.constexpr,
    SHARED_KEYS: tl.constexpr, CAUSAL: tl.constexpr, WINDOWED: tl.constexpr,
    HAS_LENGTHS: tl.constexpr, HAS_PADDING: tl.constexpr, PAGE_SIZE: tl.constexpr,
    BLOCK_ROWS: tl.constexpr, BLOCK_KEYS: tl.constexpr,
    BLOCK_K: tl.constexpr, BLOCK_V: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """Partial softmaxes of one part of the keys: accumulators, row maxima and row sums.

    Grid ``(B * Hkv, row blocks, splits)``. ``BLOCK_K`` covers the channels of a key, of both maps
    unless they share keys. ``BLOCK_V`` covers those of a value. ``PAGE_SIZE`` is 0 for a cache
    without pages.
    """
    i_bh = tl.program_id(0)
    i_split = tl.program_id(2)
    i_b = (i_bh // num_kv_heads).to(tl.int64)
    i_kv = (i_bh % num_kv_heads).to(tl.int64)
    num_rows = NUM_MAPS * num_queries * GROUP
    i_row = tl.program_id(1) * BLOCK_ROWS
    rows = i_row + tl.arange(0, BLOCK_ROWS)
    m_rows = rows < num_rows
    i_t = tl.where(m_rows, rows // NUM_MAPS // GROUP, 0)
    b_q = _load_queries(
        p_q + i_b * stride_qb, rows, m_rows, i_t, i_kv, stride_qt, stride_qh, stride_qm,
        NUM_MAPS, GROUP, HEAD_DIM, SHARED_KEYS, BLOCK_K,
    )  # [BLOCK_ROWS, BLOCK_K]  # fmt: skip

    length = num_keys
    if HAS_LENGTHS:
        length = tl.minimum(tl.load(p_lengths + i_b), num_keys)
    first, last = _seen_keys(i_t, length, num_queries, window, CAUSAL, WINDOWED)  # [BLOCK_ROWS]
    # Both ends never fall along the queries, so the block's first and last query bound its keys.
    t_low = i_row // NUM_MAPS // GROUP
    t_high = (tl.minimum(i_row + BLOCK_ROWS, num_rows) - 1) // NUM_MAPS // GROUP
    begin, _ = _seen_keys(t_low, length, num_queries, window, CAUSAL, WINDOWED)
    _, end = _seen_keys(t_high, length, num_queries, window, CAUSAL, WINDOWED)
    part = tl.cdiv(tl.maximum(end - begin, 0), num_splits)
    part = tl.cdiv(part, BLOCK_KEYS) * BLOCK_KEYS
    begin += i_split * part
    end = tl.minimum(end, begin + part)
    b_acc, b_max, b_sum = _fold_keys(
        b_q, first, last, begin, end, i_b, p_k + i_kv * stride_kh, p_v + i_kv * stride_vh, p_table,
        p_padding, stride_kb, stride_ks, stride_km, stride_vb, stride_vs, stride_tb, stride_pb,
        num_pages, scale_log2, HEAD_DIM, VALUE_DIM, SHARED_KEYS, HAS_PADDING, PAGE_SIZE,
        BLOCK_KEYS, BLOCK_K, BLOCK_V, PRECISION,
    )  # fmt: skip

    # Partial results are [B * Hkv, splits, rows (, Dv)], float32; no two programs write one.
    out_rows = (i_bh.to(tl.int64) * num_splits + i_split) * num_rows + rows
    tl.store(p_max + out_rows, b_max, mask=m_rows)
    tl.store(p_sum + out_rows, b_sum, mask=m_rows)
    values = tl.arange(0, BLOCK_V)
    m_acc = m_rows[:, None] & (values < VALUE_DIM)[None, :]
    tl.store(p_acc + out_rows[:, None] * VALUE_DIM + values[None, :], b_acc, mask=m_acc)


@triton.jit
def _load_queries(
    p_q, rows, m_rows, i_t, i_kv, stride_qt, stride_qh, stride_qm,
    NUM_MAPS: tl.constexpr, GROUP: tl.constexpr, HEAD_DIM: tl.constexpr,
    SHARED_KEYS: tl.constexpr, BLOCK_K: tl.constexpr,
):  # fmt: skip
    """The rows' queries ``[BLOCK_ROWS, BLOCK_K]``, zero in the channels of the other map's keys."""
    i_map = rows % NUM_MAPS
    i_h = i_kv * GROUP + rows // NUM_MAPS % GROUP
    channels = tl.arange(0, BLOCK_K)
    offsets = i_t.to(tl.int64) * stride_qt + i_h * stride_qh + i_map * stride_qm
    key_width: tl.constexpr = HEAD_DIM if SHARED_KEYS else 2 * HEAD_DIM
    m_q = m_rows[:, None] & (channels < key_width)[None, :]
    if not SHARED_KEYS:
        m_q = m_q & (i_map[:, None] == (channels // HEAD_DIM)[None, :])
    return tl.load(p_q + offsets[:, None] + (channels % HEAD_DIM)[None, :], mask=m_q, other=0.0)


@triton.jit
def _fold_keys(
    b_q, first, last, begin, end, i_b, p_k, p_v, p_table, p_padding,
    stride_kb, stride_ks, stride_km, stride_vb, stride_vs, stride_tb, stride_pb, num_pages,
    scale_log2,
    HEAD_DIM: tl.constexpr, VALUE_DIM: tl.constexpr, SHARED_KEYS: tl.constexpr,
    HAS_PADDING: tl.constexpr, PAGE_SIZE: tl.constexpr, BLOCK_KEYS: tl.constexpr,
    BLOCK_K: tl.constexpr, BLOCK_V: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """Accumulators, maxima and sums of the rows' softmaxes over the keys in [begin, end)."""
    channels = tl.arange(0, BLOCK_K)
    key_width: tl.constexpr = HEAD_DIM if SHARED_KEYS else 2 * HEAD_DIM
    m_channels = channels < key_width
    k_channels = channels % HEAD_DIM + (channels // HEAD_DIM).to(tl.int64) * stride_km
    values = tl.arange(0, BLOCK_V)
    m_values = values < VALUE_DIM
    b_acc = tl.zeros([b_q.shape[0], BLOCK_V], dtype=tl.float32)
    b_max = tl.full([b_q.shape[0]], float("-inf"), dtype=tl.float32)
    b_sum = tl.zeros([b_q.shape[0]], dtype=tl.float32)
    for start in range(begin, end, BLOCK_KEYS):
        keys = start + tl.arange(0, BLOCK_KEYS)
        m_keys = keys < end
        i_first, i_second = _key_places(i_b, keys, m_keys, p_table, stride_tb, num_pages, PAGE_SIZE)
        k_rows = i_first * stride_kb + i_second * stride_ks
        k_offsets = k_rows[:, None] + k_channels[None, :]
        b_k = tl.load(p_k + k_offsets, mask=m_keys[:, None] & m_channels[None, :], other=0.0)
        v_rows = i_first * stride_vb + i_second * stride_vs
        v_offsets = v_rows[:, None] + values[None, :]
        b_v = tl.load(p_v + v_offsets, mask=m_keys[:, None] & m_values[None, :], other=0.0)

        b_s = tl.dot(b_q, tl.trans(b_k), input_precision=PRECISION) * scale_log2
        m_seen = (keys[None, :] >= first[:, None]) & (keys[None, :] < last[:, None])
        m_seen = m_seen & m_keys[None, :]
        if HAS_PADDING:
            real = tl.load(p_padding + i_b * stride_pb + keys, mask=m_keys, other=0)
            m_seen = m_seen & (real[None, :] != 0)
        b_s = tl.where(m_seen, b_s, float("-inf"))  # [BLOCK_ROWS, BLOCK_KEYS]
        b_max_new = tl.maximum(b_max, tl.max(b_s, 1))
        # A row without a visible key so far has maximum -inf, and -inf - -inf would be NaN.
        b_base = tl.where(b_max_new == float("-inf"), 0.0, b_max_new)
        b_p = tl.exp2(b_s - b_base[:, None])
        b_shrink = tl.exp2(b_max - b_base)
        b_sum = b_sum * b_shrink + tl.sum(b_p, 1)
        b_acc = b_acc * b_shrink[:, None]
        b_acc += tl.dot(b_p.to(b_v.dtype), b_v, input_precision=PRECISION)
        b_max = b_max_new
    return b_acc, b_max, b_sum


@triton.jit(do_not_specialize=GROWING)
def _diff_attention_combine_kernel(
    p_acc, p_max, p_sum, p_lam, p_out,
    stride_lb, stride_lt, stride_lh,
    num_queries, num_kv_heads, num_splits,
    NUM_MAPS: tl.constexpr, GROUP: tl.constexpr, VALUE_DIM: tl.constexpr,
    BLOCK_SPLITS: tl.constexpr, BLOCK_V: tl.constexpr,
):  # fmt: skip
    """Merge the parts of one query and head to O1 − λ O2, or O1. Grid ``(B * T * H,)``."""
    i_row = tl.program_id(0).to(tl.int64)
    num_heads = num_kv_heads * GROUP
    i_h = i_row % num_heads
    i_t = i_row // num_heads % num_queries
    i_b = i_row // num_heads // num_queries
    i_bh = i_b * num_kv_heads + i_h // GROUP
    num_rows = NUM_MAPS * num_queries * GROUP
    pair = NUM_MAPS * (i_t * GROUP + i_h % GROUP)
    row = i_bh * num_splits * num_rows + pair  # of map 0 in the first part

    b_o1 = _merge(p_acc, p_max, p_sum, row, num_rows, num_splits, VALUE_DIM, BLOCK_SPLITS, BLOCK_V)
    b_out = b_o1
    if NUM_MAPS == 2:
        b_o2 = _merge(
            p_acc, p_max, p_sum, row + 1, num_rows, num_splits, VALUE_DIM, BLOCK_SPLITS, BLOCK_V
        )
        lam = tl.load(p_lam + i_b * stride_lb + i_t * stride_lt + i_h * stride_lh)
        b_out = b_o1 - lam * b_o2
    values = tl.arange(0, BLOCK_V)
    b_out = b_out.to(p_out.dtype.element_ty)
    tl.store(p_out + i_row * VALUE_DIM + values, b_out, mask=values < VALUE_DIM)


@triton.jit
def _merge(
    p_acc, p_max, p_sum, row, num_rows, num_splits,
    VALUE_DIM: tl.constexpr, BLOCK_SPLITS: tl.constexpr, BLOCK_V: tl.constexpr,
):  # fmt: skip
    """One map's output from its parts, ``[BLOCK_V]`` float32; 0 if no part has a visible key."""
    values = tl.arange(0, BLOCK_V)
    b_acc = tl.zeros([BLOCK_V], dtype=tl.float32)
    row_max = float("-inf")
    row_sum = 0.0
    for start in range(0, num_splits, BLOCK_SPLITS):
        splits = start + tl.arange(0, BLOCK_SPLITS)
        m_splits = splits < num_splits
        rows = row + splits.to(tl.int64) * num_rows
        b_max = tl.load(p_max + rows, mask=m_splits, other=float("-inf"))
        b_sum = tl.load(p_sum + rows, mask=m_splits, other=0.0)
        b_part = tl.load(
            p_acc + rows[:, None] * VALUE_DIM + values[None, :],
            mask=m_splits[:, None] & (values < VALUE_DIM)[None, :],
            other=0.0,
        )  # [BLOCK_SPLITS, BLOCK_V]
        new_max = tl.maximum(row_max, tl.max(b_max, 0))
        base = tl.where(new_max == float("-inf"), 0.0, new_max)
        b_weight = tl.exp2(b_max - base)
        shrink = tl.exp2(row_max - base)
        row_sum = row_sum * shrink + tl.sum(b_weight * b_sum, 0)
        b_acc = b_acc * shrink + tl.sum(b_weight[:, None] * b_part, 0)
        row_max = new_max
    return b_acc / tl.where(row_sum == 0.0, 1.0, row_sum)


def decode(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    lam: Tensor | None,
    *,
    scale: float,
    mask: AttentionMask = CAUSAL,
    block_table: Tensor | None = None,
    num_splits: int | None = None,
) -> Tensor:
    r"""Differential attention of at most 16 queries per row without gradient; or softmax attention.

    Arguments and result as in :func:`diffattn.ops.backends.decode_op.forward`; without λ ``q`` is
    ``[B, T, H, D]``. K and V are read in place if their channels are contiguous. With a block table
    they are pages ``[pages, page size, ...]``, and indices outside the pool are read as the nearest
    page in it. They are read once if 2 T H / Hkv rows fit one block (64 or 128 rows by width, 16 in
    float32), else once per block of rows. Sums are float32. ``num_splits`` is the number of parts
    of the keys. Default: two programs per multiprocessor.

    Source: arXiv:2410.05258v2, Eq. (1).
    """
    if lam is None:
        q = q[:, :, :, None]
    batch, num_queries, num_heads, num_maps, head_dim = q.shape
    num_keys, num_kv_heads, value_dim = v.shape[1:]
    group = num_heads // num_kv_heads
    if block_table is not None:
        block_table, num_keys = block_table.contiguous(), block_table.shape[1] * num_keys
    num_rows = num_maps * num_queries * group
    tiles = tiles_of(
        num_rows, head_dim, value_dim, k.ndim == 4, q.element_size(), _shared_bytes(q.device)
    )
    tiles["num_stages"] += 0 if block_table is None else TABLE_STAGES
    if num_splits is None:
        programs = batch * num_kv_heads * num_blocks(num_rows, tiles["BLOCK_ROWS"])
        by_length = num_keys // _KEYS_PER_SPLIT
        # The interpreter has one multiprocessor, but must merge several parts.
        by_programs = max(4, 2 * num_multiprocessors(q.device)) // max(1, programs)
        num_splits = max(1, min(by_programs, by_length, _MAX_SPLITS))
    constants = {"NUM_MAPS": num_maps, "GROUP": group, "VALUE_DIM": value_dim}
    parts = _softmax_parts(
        q, k, v, block_table, mask, num_keys, num_splits, scale, constants | tiles
    )
    out = torch.empty(batch, num_queries, num_heads, value_dim, dtype=q.dtype, device=q.device)
    lam = None if lam is None else lam.expand(batch, num_queries, num_heads)
    run_kernel(
        _diff_attention_combine_kernel, (batch * num_queries * num_heads, 1, 1),
        (*parts, lam, out),
        (*((0, 0, 0) if lam is None else lam.stride()), num_queries, num_kv_heads, num_splits),
        **constants, BLOCK_V=tiles["BLOCK_V"], BLOCK_SPLITS=16, num_warps=4, **FP_FUSION,
    )  # fmt: skip
    return out


def _softmax_parts(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    block_table: Tensor | None,
    mask: AttentionMask,
    num_keys: int,
    num_splits: int,
    scale: float,
    constants: dict[str, int],
) -> tuple[Tensor, ...]:
    """Accumulators, row maxima and row sums of every part of the keys, float32."""
    batch, num_queries, _, num_maps, head_dim = q.shape
    num_kv_heads, value_dim = v.shape[2:]
    num_rows = num_maps * num_queries * constants["GROUP"]
    q, k, v = dense_rows(q), dense_rows(k), dense_rows(v)
    causal, window, padding, kv_lengths, _ = mask.flat()
    padding = None if padding is None else padding.contiguous().view(torch.int8)
    kv_lengths = None if kv_lengths is None else kv_lengths.contiguous()
    parts = tuple(
        torch.empty(
            (batch * num_kv_heads, num_splits, num_rows, *width),
            dtype=torch.float32,
            device=q.device,
        )
        for width in ((value_dim,), (), ())
    )
    # A window above S hides no key, and one near 2^31 would overflow int32.
    width = 0 if window is None else min(window, num_keys)
    grid = (batch * num_kv_heads, num_blocks(num_rows, constants["BLOCK_ROWS"]), num_splits)
    run_kernel(
        _diff_attention_decode_kernel, grid,
        (q, k, v, block_table, kv_lengths, padding, *parts),
        (*strides_of(q, k, v, None)[:11], 0 if block_table is None else block_table.shape[1],
         num_keys, width, scale * LOG2_E, num_queries, num_keys, num_kv_heads, num_splits,
         v.shape[0]),
        HEAD_DIM=head_dim, SHARED_KEYS=k.ndim == 4, CAUSAL=causal, WINDOWED=window is not None,
        HAS_LENGTHS=kv_lengths is not None, HAS_PADDING=padding is not None,
        PAGE_SIZE=0 if block_table is None else v.shape[1],
        PRECISION="ieee" if q.dtype == torch.float32 else "tf32", **constants, **FP_FUSION,
    )  # fmt: skip
    return parts


def tiles_of(
    num_rows: int,
    head_dim: int,
    value_dim: int,
    shared_keys: bool,
    itemsize: int,
    shared_bytes: int,
) -> dict[str, int]:
    """Tile sizes and launch settings that fit ``shared_bytes`` of shared memory."""
    block_k = triton.next_power_of_2(head_dim if shared_keys else 2 * head_dim)
    block_v = triton.next_power_of_2(value_dim)
    widest = max(block_k, block_v)
    # With 8 warps the accumulators take at most 64 registers per thread. Products in full float32
    # use no tensor cores and also hold their operands in registers.
    most_rows = min(16_384 // widest, 128) if itemsize == 2 else 16
    block_rows = min(max(16, triton.next_power_of_2(num_rows)), most_rows)
    block_keys = (64 if widest <= 128 else 32) // (itemsize // 2)
    tile_bytes = block_keys * (block_k + block_v) * itemsize
    left_bytes = shared_bytes - block_rows * block_k * itemsize
    return {
        "BLOCK_ROWS": block_rows,
        "BLOCK_KEYS": block_keys,
        "BLOCK_K": block_k,
        "BLOCK_V": block_v,
        "num_warps": 4 if block_rows <= 32 else 8,
        "num_stages": max(1, min(3, left_bytes // tile_bytes)),
    }


def _shared_bytes(device: torch.device) -> int:
    """Shared memory of one program, in bytes; in the interpreter that of a large GPU."""
    if device.type != "cuda":
        return LARGE_SHARED_BYTES
    properties: Any = torch.cuda.get_device_properties(device)  # its stub lacks the attribute
    return int(properties.shared_memory_per_block_optin)
