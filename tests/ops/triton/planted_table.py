"""Errors in the kernels, each one changed place of the source: a table of test_planted_errors."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Planted:
    """One wrong place in one kernel, and the call that must notice it."""

    kernel: str
    name: str
    module: str
    right: str
    wrong: str
    call: str
    nth: int = 1
    """Which of the places that hold ``right``; there must be just ``of``."""
    of: int = 1

    def __str__(self):
        return f"{self.kernel}: {self.name}"

    def in_source(self, source):
        places = source.count(self.right)
        assert places == self.of, f"{self}: {self.of} of {self.right!r} expected, got {places}"
        *before, after = source.split(self.right, self.nth)
        return self.right.join(before) + self.wrong + after


TILES = [
    Planted("every kernel", "mask one key short", "tiles",
            "(num_keys - num_queries) + 1, num_keys)", "(num_keys - num_queries), num_keys)", "v1"),
    Planted("every kernel", "window one key short", "tiles",
            "(b_keys >= b_first)", "(b_keys > b_first)", "v1-window"),
    Planted("every kernel", "padding ignored", "tiles",
            "m_keys = tl.load(p_padding + b_keys, mask=m_keys, other=0) != 0", "m_keys = m_keys",
            "v1-gap"),
    Planted("fwd and dq", "diagonal in the unmasked loop", "tiles",
            "edge = tl.maximum(i_query + (num_keys - num_queries) + 1, 0) // BLOCK_N * BLOCK_N",
            "edge = tl.minimum(tl.cdiv(i_query + (num_keys - num_queries) + 1, BLOCK_N), "
            "num_keys // BLOCK_N) * BLOCK_N", "v1"),
    Planted("fwd and dq", "last tile of the intervals in the unmasked loop", "tiles",
            "edge = tl.maximum(tl.load(p_last + i_query) // BLOCK_N * BLOCK_N, full)",
            "edge = tl.minimum(tl.cdiv(tl.load(p_last + i_query), BLOCK_N), "
            "num_keys // BLOCK_N) * BLOCK_N\n        edge = tl.maximum(edge, full)", "v1-band"),
    Planted("fwd and dq", "gap in the unmasked loop", "tiles",
            "tl.load(p_before + edge) - tl.load(p_before + full) != edge - full", "edge < full",
            "v1-gap"),
    Planted("fwd and dq", "last partial tile ignored", "tiles",
            "            stop = num_keys\n", "            stop = num_keys // BLOCK_N * BLOCK_N\n",
            "v1-cross"),
    Planted("dkv", "last partial tile ignored", "tiles",
            "        edge = num_queries\n", "        edge = num_queries // BLOCK_M * BLOCK_M\n",
            "v1"),
    Planted("dkv", "diagonal in the unmasked loop", "tiles",
            "full = tl.cdiv(full, BLOCK_M) * BLOCK_M", "full = full // BLOCK_M * BLOCK_M", "v1"),
    Planted("dkv", "last tile of the intervals in the unmasked loop", "tiles",
            "tl.where(edge == num_queries, edge, edge // BLOCK_M * BLOCK_M)",
            "tl.minimum(tl.cdiv(edge, BLOCK_M) * BLOCK_M, num_queries)", "v1-band"),
    Planted("dkv", "weights past the last key", "tiles",
            "m_hidden = i_key + BLOCK_N > num_keys", "m_hidden = i_key > num_keys", "v1-steep"),
    Planted("bwd", "store for the atomic add", "tiles",
            'tl.atomic_add(p_tile, b_tile, mask=m_tile, sem="relaxed")',
            "tl.store(p_tile, b_tile, mask=m_tile)", "v1-one-kernel"),
    Planted("fwd", "accumulator not rescaled", "tiles",
            "b_acc = b_acc * b_rescale[:, None]", "b_acc = b_acc", "v1"),
    Planted("fwd", "row without keys", "tiles",
            "b_sum = tl.where(m_none, 1.0, b_sum)", "b_sum = b_sum", "v1-T>S"),
    Planted("dkv and dq", "numbers of map 1 for map 2", "tiles",
            "p_queries + num_queries + b_queries", "p_queries + b_queries", "v1"),
]  # fmt: skip
FORWARD = [
    Planted("fwd", "sign of λ", "forward", "b_o1 - b_lam[:, None] * b_o2",
            "b_o1 + b_lam[:, None] * b_o2", "v1"),
    Planted("fwd", "λ of the first token", "forward", "b_queries.to(tl.int64) * stride_lt",
            "b_queries.to(tl.int64) * 0", "v1"),
    Planted("fwd", "heads", "forward", "i_head // group", "i_head % group", "v1-heads"),
    Planted("fwd", "K1 for K2", "forward", "p_k + stride_km, i_key", "p_k, i_key", "v1"),
    Planted("fwd", "O1 for O2", "forward", "store_tile(p_o2, i_query, b_o2,",
            "store_tile(p_o2, i_query, b_o1,", "v1"),
    Planted("fwd", "last block of queries not launched", "forward",
            "num_blocks(num_queries, config.block_m)", "num_queries // config.block_m", "v1"),
    Planted("fwd by map", "order of the maps", "forward", "    if MAP_BY_MAP:\n",
            "    if MAP_BY_MAP:\n        p_q += stride_qm\n        p_k += stride_km\n"
            "        stride_qm, stride_km = -stride_qm, -stride_km\n", "v1-by-map"),
    Planted("fwd by map", "diagonal ignored", "forward", "0 if RANGES else 1, 3", "1, 2",
            "v1-by-map"),
]  # fmt: skip
BACKWARD = [
    Planted("preprocess", "sign of λ", "backward", "+= b_lam * b_delta2", "-= b_lam * b_delta2",
            "v1"),
    Planted("preprocess", "sign of dλ", "backward", "tl.store(p_dlam, -b_delta2",
            "tl.store(p_dlam, b_delta2", "v1"),
    Planted("dkv", "sign of λ in dV", "backward_keys", "b_p1 - b_p2", "b_p1 + b_p2", "v1"),
    Planted("dkv", "heads", "backward_keys", "i_kv_head * group + i_split * members + i_member",
            "i_member * num_kv_heads + i_kv_head", "v1-heads"),
    Planted("dkv", "shared keys from map 1 alone", "backward_keys",
            'b_dk1 = tl.dot(b_ds2, b_q2, b_dk1, input_precision="ieee")', "b_dk1 = b_dk1", "v2"),
    Planted("dkv", "K1 for K2", "backward_keys", "stride_ks, stride_km, num_keys,",
            "stride_ks, 0, num_keys,", "v1"),
    Planted("dq", "sign of λ", "backward", "(-scale * b_lam)", "(scale * b_lam)", "v1"),
    Planted("dq", "heads", "backward", "i_head // group", "i_head % group", "v1-heads"),
    Planted("dq", "keys of map 1 for map 2", "backward", "b_k2, b_dq2", "b_k1, b_dq2", "v1"),
    Planted("bwd", "no scale of dQ", "backward", 'gradients["DQ"].mul_(scale)', 'gradients["DQ"]',
            "v1-one-kernel"),
    Planted("bwd", "dQ2 in the place of dQ1", "backward_keys", "p_dq + HEAD_DIM, i_query",
            "p_dq, i_query", "v1-one-kernel"),
    Planted("bwd", "heads of dQ", "backward_keys", "num_heads + i_head) * NUM_MAPS * HEAD_DIM",
            "num_heads + i_head * 0) * NUM_MAPS * HEAD_DIM", "v1-one-kernel-heads"),
    Planted("bwd", "dQ of shared keys", "backward_keys", "tl.dot(tl.trans(b_ds1), b_k1",
            "tl.dot(tl.trans(b_ds2), b_k1", "v2-one-kernel"),
    Planted("bwd", "no dQ2", "backward_keys", "i_query, b_dq2,", "i_query, b_dq2 * 0.0,",
            "v1-one-kernel"),
    Planted("dk and dv", "dV of one map", "backward_keys", "b_p1 - b_p2", "b_p1", "v1-dk"),
    Planted("dk and dv", "values one column wide", "backward_keys",
            "p_v, i_key, stride_vs, num_keys, BLOCK_N, VALUE_DIM,",
            "p_v, i_key, stride_vs, num_keys, BLOCK_N, VALUE_DIM // 2,", "v1-dk"),
    Planted("dkv in parts", "one part left out", "backward", "x.sum(0)", "x[1:].sum(0)",
            "v1-parts"),
    Planted("dkv in parts", "key/value heads", "backward_keys",
            "tl.program_id(1).to(tl.int64) // splits", "tl.program_id(1).to(tl.int64) % splits",
            "v1-parts-heads"),
]  # fmt: skip
SOFTMAX = [
    Planted("softmax dkv", "weights of no map", "backward_keys", "        b_p = b_p1\n",
            "        b_p = b_p1 * 0.0\n", "softmax"),
    Planted("softmax dkv", "heads", "backward_keys",
            "i_kv_head * group + i_split * members + i_member",
            "i_member * num_kv_heads + i_kv_head", "softmax-heads"),
    Planted("softmax dkv in parts", "every part the first", "backward_keys",
            "i_split * members + ", "", "softmax-parts"),
    Planted("softmax bwd", "heads of dQ", "backward_keys",
            "num_heads + i_head) * NUM_MAPS * HEAD_DIM",
            "num_heads + i_head * 0) * NUM_MAPS * HEAD_DIM", "softmax-one-kernel-heads"),
    Planted("dq", "last block of queries not launched", "backward",
            "num_blocks(num_queries, config.block_m)", "num_queries // config.block_m", "softmax"),
]  # fmt: skip
DECODE = [
    Planted("decode", "mask one key short", "decode", "tl.maximum(position + 1, 0)",
            "tl.maximum(position, 0)", "decode"),
    Planted("decode", "window one key long", "decode", "position + 1 - window",
            "position - window", "decode-window"),
    Planted("decode", "padding ignored", "decode", "m_seen = m_seen & (real[None, :] != 0)",
            "m_seen = m_seen", "decode-padded"),
    Planted("decode", "heads", "decode", "i_kv * GROUP + rows // NUM_MAPS % GROUP",
            "i_kv * 0 + rows // NUM_MAPS % GROUP", "decode"),
    Planted("decode", "accumulator not rescaled", "decode", "b_acc = b_acc * b_shrink[:, None]",
            "b_acc = b_acc", "decode"),
    Planted("decode", "last partial tile ignored", "decode", "tl.minimum(end, begin + part)",
            "tl.minimum(end, begin + part) // BLOCK_KEYS * BLOCK_KEYS", "decode"),
    Planted("combine", "sign of λ", "decode", "b_o1 - lam * b_o2", "b_o1 + lam * b_o2", "decode"),
    Planted("combine", "heads of the parts", "decode", "num_kv_heads + i_h // GROUP",
            "num_kv_heads + i_h % GROUP", "decode"),
    Planted("combine", "first parts not rescaled", "decode", "b_acc = b_acc * shrink",
            "b_acc = b_acc", "decode-parts"),
    Planted("softmax decode", "queries of two maps", "decode", "rows // NUM_MAPS // GROUP, 0)",
            "rows // 2 // GROUP, 0)", "decode-softmax"),
    Planted("softmax combine", "rows of two maps", "decode", "pair = NUM_MAPS * (", "pair = 2 * (",
            "decode-softmax"),
    Planted("paged decode", "place in the page ignored", "decode", "i_second = keys % PAGE_SIZE",
            "i_second = keys * 0", "decode-paged"),
    Planted("paged decode", "table ignored", "decode", "tl.minimum(tl.maximum(i_page, 0)",
            "tl.minimum(tl.maximum(keys // PAGE_SIZE, 0)", "decode-paged"),
]  # fmt: skip


ALL = TILES + FORWARD + BACKWARD + SOFTMAX + DECODE
