"""Steps on a tile that kernels share: load, store, hide keys, one step of the online softmax."""

import triton
import triton.language as tl


@triton.jit
def load_tile(
    p_rows, i_row, stride, num_rows,
    ROWS: tl.constexpr, WIDTH: tl.constexpr, BLOCK_WIDTH: tl.constexpr, CHECK_ROWS: tl.constexpr,
):  # fmt: skip
    """``[ROWS, BLOCK_WIDTH]``, 0 from column ``WIDTH`` on and, if checked, after the last row."""
    b_rows = (i_row + tl.arange(0, ROWS))[:, None]
    b_columns = tl.arange(0, BLOCK_WIDTH)[None, :]
    p_tile = p_rows + b_rows.to(tl.int64) * stride + b_columns
    if CHECK_ROWS and WIDTH < BLOCK_WIDTH:
        b_tile = tl.load(p_tile, mask=(b_rows < num_rows) & (b_columns < WIDTH), other=0.0)
    elif CHECK_ROWS:
        b_tile = tl.load(p_tile, mask=b_rows < num_rows, other=0.0)
    elif WIDTH < BLOCK_WIDTH:
        b_tile = tl.load(p_tile, mask=b_columns < WIDTH, other=0.0)
    else:
        b_tile = tl.load(p_tile)
    return b_tile


@triton.jit
def load_tiles(
    p_rows, i_row, stride, stride_map, num_rows,
    ROWS: tl.constexpr, WIDTH: tl.constexpr, BLOCK_WIDTH: tl.constexpr, CHECK_ROWS: tl.constexpr,
    BOTH: tl.constexpr,
):  # fmt: skip
    """The tiles of both maps; the same tile twice if there is one map."""
    b_tile1 = load_tile(p_rows, i_row, stride, num_rows, ROWS, WIDTH, BLOCK_WIDTH, CHECK_ROWS)
    b_tile2 = b_tile1
    if BOTH:
        b_tile2 = load_tile(
            p_rows + stride_map, i_row, stride, num_rows, ROWS, WIDTH, BLOCK_WIDTH, CHECK_ROWS
        )
    return b_tile1, b_tile2


@triton.jit
def load_numbers(p_queries, b_queries, num_queries, other, BOTH: tl.constexpr):
    """Numbers of a block of queries from ``[maps, T]``, for both maps; one map: the same twice."""
    m_queries = b_queries < num_queries
    b_number1 = tl.load(p_queries + b_queries, mask=m_queries, other=other)
    b_number2 = b_number1
    if BOTH:
        b_number2 = tl.load(p_queries + num_queries + b_queries, mask=m_queries, other=other)
    return b_number1, b_number2


@triton.jit
def store_tile(p_rows, i_row, b_tile, stride, num_rows, WIDTH: tl.constexpr):
    """Write the existing rows and columns of a tile, in the dtype of the pointer."""
    b_rows = (i_row + tl.arange(0, b_tile.shape[0]))[:, None]
    b_columns = tl.arange(0, b_tile.shape[1])[None, :]
    p_tile = p_rows + b_rows.to(tl.int64) * stride + b_columns
    m_tile = (b_rows < num_rows) & (b_columns < WIDTH)
    tl.store(p_tile, b_tile.to(p_rows.dtype.element_ty), mask=m_tile)


@triton.jit
def add_tile(p_rows, i_row, b_tile, stride, num_rows, WIDTH: tl.constexpr):
    """Add to the existing rows and columns of a tile by atomics: other programs add to them too."""
    b_rows = (i_row + tl.arange(0, b_tile.shape[0]))[:, None]
    b_columns = tl.arange(0, b_tile.shape[1])[None, :]
    p_tile = p_rows + b_rows.to(tl.int64) * stride + b_columns
    m_tile = (b_rows < num_rows) & (b_columns < WIDTH)
    tl.atomic_add(p_tile, b_tile, mask=m_tile, sem="relaxed")  # read only after the launch


@triton.jit
def keys_of_queries(
    p_first, p_last, b_queries, num_queries, num_keys,
    CAUSAL: tl.constexpr, RANGES: tl.constexpr,
):  # fmt: skip
    """The interval ``first <= j < last`` of keys that each query of a block sees."""
    if RANGES:
        m_queries = b_queries < num_queries
        b_first = tl.load(p_first + b_queries, mask=m_queries, other=0)
        b_last = tl.load(p_last + b_queries, mask=m_queries, other=0)
    else:
        b_first = b_queries * 0
        if CAUSAL:
            b_last = tl.minimum(b_queries + (num_keys - num_queries) + 1, num_keys)
        else:
            b_last = b_first + num_keys
    return b_first, b_last


@triton.jit
def keys_of_block(
    p_first, p_last, p_before, i_query, num_queries, num_keys,
    CAUSAL: tl.constexpr, RANGES: tl.constexpr, PADDING: tl.constexpr, BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
):  # fmt: skip
    """Each query's interval of keys, then keys that the block of queries from ``i_query`` on sees:
    all its queries see [full, edge), some of them see [start, full) and [edge, stop)."""
    b_first, b_last = keys_of_queries(
        p_first, p_last, i_query + tl.arange(0, BLOCK_M), num_queries, num_keys, CAUSAL, RANGES
    )
    i_end = tl.minimum(i_query + BLOCK_M, num_queries)
    if RANGES:  # first and last never fall from one query to the next
        start = tl.load(p_first + i_query) // BLOCK_N * BLOCK_N
        stop = tl.load(p_last + i_end - 1)
        full = tl.cdiv(tl.load(p_first + i_end - 1), BLOCK_N) * BLOCK_N
        full = tl.minimum(full, stop)
        edge = tl.maximum(tl.load(p_last + i_query) // BLOCK_N * BLOCK_N, full)
        if PADDING:
            m_gaps = tl.load(p_before + edge) - tl.load(p_before + full) != edge - full
            full = tl.where(m_gaps, stop, full)
            edge = tl.where(m_gaps, stop, edge)
    else:
        start = 0
        full = 0
        if CAUSAL:
            stop = tl.maximum(i_end + (num_keys - num_queries), 0)
            edge = tl.maximum(i_query + (num_keys - num_queries) + 1, 0) // BLOCK_N * BLOCK_N
        else:
            stop = num_keys
            edge = num_keys // BLOCK_N * BLOCK_N
    return b_first, b_last, start, full, edge, stop


@triton.jit
def query_bounds(
    p_begin, p_end, p_before, i_key, num_queries, num_keys,
    CAUSAL: tl.constexpr, RANGES: tl.constexpr, PADDING: tl.constexpr, BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
):  # fmt: skip
    """Queries that see the block of keys from ``i_key`` on: those in [full, edge) see all its keys,
    those in [start, full) and, with intervals, [edge, stop) some of them."""
    i_end = tl.minimum(i_key + BLOCK_N, num_keys)
    # After the last key logits are 0 and weights may be inf, and dQ would multiply inf by 0.
    m_hidden = i_key + BLOCK_N > num_keys
    if RANGES:
        start = tl.load(p_begin + i_key) // BLOCK_M * BLOCK_M
        stop = tl.load(p_end + i_end - 1)
        full = tl.cdiv(tl.load(p_begin + i_end - 1), BLOCK_M) * BLOCK_M
        edge = tl.load(p_end + i_key)
        # After the last query every weight is 0, so the last tile may be partly empty.
        edge = tl.where(edge == num_queries, edge, edge // BLOCK_M * BLOCK_M)
        if PADDING:
            m_hidden |= tl.load(p_before + i_end) - tl.load(p_before + i_key) != i_end - i_key
        edge = tl.where(m_hidden, stop, edge)
    else:
        start = 0
        full = 0
        edge = num_queries
        stop = num_queries
        if CAUSAL:
            start = tl.maximum(i_key - (num_keys - num_queries), 0) // BLOCK_M * BLOCK_M
            full = tl.maximum(i_end - 1 - (num_keys - num_queries), 0)
            full = tl.cdiv(full, BLOCK_M) * BLOCK_M
    full = tl.minimum(tl.where(m_hidden, stop, full), stop)
    if RANGES:
        edge = tl.maximum(edge, full)
    return start, full, edge, stop


@triton.jit
def load_real(p_padding, b_keys, num_keys, PADDING: tl.constexpr):
    """bool mask of keys that exist and are not padding."""
    m_keys = b_keys < num_keys
    if PADDING:
        m_keys = tl.load(p_padding + b_keys, mask=m_keys, other=0) != 0
    return m_keys


@triton.jit
def visible(b_keys, m_real, b_first, b_last, RANGES: tl.constexpr):
    """Mask of a tile. Arguments have an axis of size 1, so rows may be queries or keys."""
    m_tile = m_real & (b_keys < b_last)
    if RANGES:
        m_tile = m_tile & (b_keys >= b_first)
    return m_tile


@triton.jit
def softmax_step(b_logits, b_v, b_max, b_sum, b_acc, MASKED: tl.constexpr):
    """Update running maximum, sum and output with a tile of keys; logits are in base 2."""
    b_new = tl.maximum(b_max, tl.max(b_logits, 1))
    b_shift = b_new
    if MASKED:  # a row without a visible key so far: -inf minus -inf would be NaN
        b_shift = tl.where(b_new == float("-inf"), 0.0, b_new)
    b_weights = tl.exp2(b_logits - b_shift[:, None])  # [M, N]
    b_rescale = tl.exp2(b_max - b_shift)
    b_sum = b_sum * b_rescale + tl.sum(b_weights, 1)
    b_acc = b_acc * b_rescale[:, None]
    b_acc = tl.dot(b_weights.to(b_v.dtype), b_v, b_acc, input_precision="ieee")  # [M, DV]
    return b_new, b_sum, b_acc


@triton.jit
def finish_softmax(b_max, b_sum, b_acc):
    """Output, and logarithm in base 2 of each row's sum; 0 and +inf for a row without keys."""
    m_none = b_sum == 0.0
    b_sum = tl.where(m_none, 1.0, b_sum)
    b_lse = tl.where(m_none, float("inf"), b_max + tl.log2(b_sum))
    return b_acc / b_sum[:, None], b_lse
