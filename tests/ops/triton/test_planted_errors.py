"""An error planted in each kernel is caught by the assertion that every kernel test makes.

An error is one changed place in the source, at which a copy of the kernels is defined anew. In
bfloat16, whose tolerance is the widest, at lengths of two or three of the interpreter's tiles.
"""

import importlib
import sys
import uuid
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import pytest
import torch

pytest.importorskip("triton")

from diffattn.ops.diff_attention import triton as kernels
from diffattn.ops.diff_attention.triton import configs
from diffattn.ops.masking import AttentionMask
from diffattn.testing.assertions import assert_close_to_reference
from diffattn.testing.inputs import OpCase
from ops.paged_inputs import pages_of

from .kernel_calls import decode, differential, inputs_of, softmax

pytestmark = pytest.mark.skipif(
    not configs.interpreted(), reason="copies of the kernels are defined for the interpreter"
)

EVERY_PUSH = (
    "mask one key short", "sign of λ", "accumulator not rescaled", "heads", "no scale of dQ",
    "store for the atomic add", "order of the maps", "one part left out",
    "place in the page ignored",
)  # fmt: skip
"""Errors by name, of whichever kernel; the others are planted in the scheduled tier."""
MODULES = (
    "tiles", "launch", "softmax", "forward", "backward_keys", "backward", "softmax_backward",
    "decode",
)  # fmt: skip
"""What is copied, each after what it imports."""


def decode_in_19_parts(q, k, v, lam, *, backend, **options):
    """More parts than the merge takes at once; 1,200 keys leave none of them empty."""
    if backend == "reference":
        return decode(q, k, v, lam, backend=backend, **options)
    scale, mask = q.shape[-1] ** -0.5, AttentionMask(**options)
    return kernels.decode.decode(q, k, v, lam, scale=scale, mask=mask, num_splits=19)


@dataclass(frozen=True, slots=True)
class Call:
    """What is computed, and the form of the kernels that computes it."""

    op: Callable[..., torch.Tensor]
    options: dict
    gap: bool = False
    """Whether one key in the middle is padding; those of ``OpCase`` are at the ends."""
    form: dict = field(default_factory=dict)
    """Attributes of ``configs`` by name, which choose the launches."""


def any_order(q):
    """In place of ``adds_in_order``, for the tests of this folder ask for one order."""
    return False


V1 = {"batch": 1, "num_heads": 2, "num_kv_heads": 1, "head_dim": 32, "value_dim": 64,
      "num_queries": 18, "num_keys": 41, "lam_axes": "bth"}  # fmt: skip
V2 = V1 | {"value_dim": 32, "shared_keys": True}
BAND = V1 | {"num_queries": 70, "num_keys": 70, "window": 40}
TWICE = {"num_heads": 4, "num_kv_heads": 2}
"""The least in which a wrong head may come from a wrong quotient or remainder."""
FEW = V1 | TWICE | {"num_queries": 3, "num_keys": 300}
ONE_KERNEL = {"adds_in_order": any_order}
IN_PARTS = {"num_multiprocessors": lambda device: 132}
CALLS = {
    "v1": Call(differential, V1),
    "v1-heads": Call(differential, V1 | TWICE),
    "v1-cross": Call(differential, V1 | {"causal": False}),
    "v1-T>S": Call(differential, V1 | {"num_queries": 35, "num_keys": 20}),
    "v1-window": Call(differential, V1 | {"window": 20}),
    "v1-band": Call(differential, BAND),
    "v1-padded": Call(differential, V1 | {"padding": ((20, 3),)}),
    "v1-gap": Call(differential, V1 | {"num_keys": 73, "padding": ((0, 0),)}, gap=True),
    "v1-by-map": Call(differential, V1, form={"FORWARD_FORMS": (("fwd_by_map",),)}),
    "v1-one-kernel": Call(differential, V1, form=ONE_KERNEL),
    "v1-one-kernel-heads": Call(differential, V1 | TWICE, form=ONE_KERNEL),
    "v1-steep": Call(
        differential, V1 | {"num_keys": 2, "scale": 50.0, "causal": False}, form=ONE_KERNEL
    ),
    "v1-dkq": Call(differential, V1, form=ONE_KERNEL | {"BACKWARD_FORMS": (("dkq", "dv"),)}),
    "v1-dk": Call(differential, V1, form={"BACKWARD_FORMS": (("dk", "dv", "dq"),)}),
    "v1-parts": Call(differential, V1, form=IN_PARTS),
    "v1-parts-heads": Call(differential, V1 | TWICE, form=IN_PARTS),
    "v2": Call(differential, V2),
    "v2-one-kernel": Call(differential, V2, form=ONE_KERNEL),
    "softmax": Call(softmax, V2),
    "softmax-heads": Call(softmax, V2 | TWICE),
    "softmax-cross": Call(softmax, V2 | {"causal": False}),
    "softmax-one-kernel": Call(softmax, V2, form=ONE_KERNEL),
    "softmax-one-kernel-heads": Call(softmax, V2 | TWICE, form=ONE_KERNEL),
    "softmax-parts": Call(softmax, V2 | TWICE, form=IN_PARTS),
    "decode": Call(decode, FEW),
    "decode-window": Call(decode, FEW | {"window": 140}),
    "decode-lengths": Call(decode, FEW | {"kv_lengths": (170,)}),
    "decode-padded": Call(decode, FEW | {"padding": ((130, 3),)}),
    "decode-parts": Call(decode_in_19_parts, FEW | {"num_keys": 1200}),
    "decode-paged": Call(pages_of(16), FEW | {"batch": 2, "num_keys": 70}),
}


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
        found = source.count(self.right)
        assert found == self.of, f"{self}: {self.of} of {self.right!r} expected, got {found}"
        *before, after = source.split(self.right, self.nth)
        return self.right.join(before) + self.wrong + after


TILES = [
    Planted("every kernel", "mask one key short", "tiles",
            "(num_keys - num_queries) + 1, num_keys)", "(num_keys - num_queries), num_keys)", "v1"),
    Planted("every kernel", "mask one key long", "tiles",
            "(num_keys - num_queries) + 1, num_keys)", "(num_keys - num_queries) + 2, num_keys)",
            "v1"),
    Planted("every kernel", "window one key short", "tiles",
            "(b_keys >= b_first)", "(b_keys > b_first)", "v1-window"),
    Planted("every kernel", "padding ignored", "tiles",
            "m_keys = tl.load(p_padding + b_keys, mask=m_keys, other=0) != 0", "m_keys = m_keys",
            "v1-gap"),
    Planted("fwd and dq", "diagonal in the unmasked loop", "tiles",
            "edge = tl.maximum(i_query + (num_keys - num_queries) + 1, 0) // BLOCK_N * BLOCK_N",
            "edge = tl.minimum(tl.cdiv(i_query + (num_keys - num_queries) + 1, BLOCK_N), "
            "num_keys // BLOCK_N) * BLOCK_N", "v1"),
    Planted("fwd and dq", "first tile of the intervals in the unmasked loop", "tiles",
            "full = tl.cdiv(tl.load(p_first + i_end - 1), BLOCK_N) * BLOCK_N",
            "full = tl.load(p_first + i_end - 1) // BLOCK_N * BLOCK_N", "v1-band"),
    Planted("fwd and dq", "last tile of the intervals in the unmasked loop", "tiles",
            "edge = tl.maximum(tl.load(p_last + i_query) // BLOCK_N * BLOCK_N, full)",
            "edge = tl.minimum(tl.cdiv(tl.load(p_last + i_query), BLOCK_N), "
            "num_keys // BLOCK_N) * BLOCK_N\n        edge = tl.maximum(edge, full)", "v1-band"),
    Planted("fwd and dq", "first tile of the intervals ignored", "tiles",
            "start = tl.load(p_first + i_query) // BLOCK_N * BLOCK_N",
            "start = tl.cdiv(tl.load(p_first + i_query), BLOCK_N) * BLOCK_N", "v1-band"),
    Planted("fwd and dq", "gap in the unmasked loop", "tiles",
            "tl.load(p_before + edge) - tl.load(p_before + full) != edge - full", "edge < full",
            "v1-gap"),
    Planted("fwd and dq", "last partial tile ignored", "tiles",
            "            stop = num_keys\n", "            stop = num_keys // BLOCK_N * BLOCK_N\n",
            "v1-cross"),
    Planted("fwd and dq", "last tile of the diagonal ignored", "tiles",
            "stop = tl.maximum(i_end + (num_keys - num_queries), 0)",
            "stop = tl.maximum(i_end + (num_keys - num_queries), 0) // BLOCK_N * BLOCK_N", "v1"),
    Planted("dkv", "last partial tile ignored", "tiles",
            "        edge = num_queries\n", "        edge = num_queries // BLOCK_M * BLOCK_M\n",
            "v1"),
    Planted("dkv", "first tile of the diagonal ignored", "tiles",
            "start = tl.maximum(i_key - (num_keys - num_queries), 0) // BLOCK_M * BLOCK_M",
            "start = tl.cdiv(tl.maximum(i_key - (num_keys - num_queries), 0), BLOCK_M) * BLOCK_M",
            "v1"),
    Planted("dkv", "diagonal in the unmasked loop", "tiles",
            "full = tl.cdiv(full, BLOCK_M) * BLOCK_M", "full = full // BLOCK_M * BLOCK_M", "v1"),
    Planted("dkv", "first tile of the intervals in the unmasked loop", "tiles",
            "full = tl.cdiv(tl.load(p_begin + i_end - 1), BLOCK_M) * BLOCK_M",
            "full = tl.load(p_begin + i_end - 1) // BLOCK_M * BLOCK_M", "v1-band"),
    Planted("dkv", "last tile of the intervals in the unmasked loop", "tiles",
            "tl.where(edge == num_queries, edge, edge // BLOCK_M * BLOCK_M)",
            "tl.minimum(tl.cdiv(edge, BLOCK_M) * BLOCK_M, num_queries)", "v1-band"),
    Planted("dkv", "last query of the intervals", "tiles",
            "stop = tl.load(p_end + i_end - 1)", "stop = tl.load(p_end + i_key)", "v1-band"),
    Planted("dkv", "gap in the unmasked loop", "tiles",
            "m_hidden |= tl.load(p_before + i_end) - tl.load(p_before + i_key) != i_end - i_key",
            "m_hidden = m_hidden", "v1-gap"),
    Planted("dkv", "weights past the last key", "tiles",
            "m_hidden = i_key + BLOCK_N > num_keys", "m_hidden = i_key > num_keys", "v1-steep"),
    Planted("bwd", "store for the atomic add", "tiles",
            'tl.atomic_add(p_tile, b_tile, mask=m_tile, sem="relaxed")',
            "tl.store(p_tile, b_tile, mask=m_tile)", "v1-one-kernel"),
    Planted("bwd", "rows past the last query", "tiles",
            "    m_tile = (b_rows < num_rows) & (b_columns < WIDTH)\n    tl.atomic_add",
            "    m_tile = (b_rows < num_rows - 1) & (b_columns < WIDTH)\n    tl.atomic_add",
            "v1-one-kernel"),
    Planted("fwd", "accumulator not rescaled", "tiles",
            "b_acc = b_acc * b_rescale[:, None]", "b_acc = b_acc", "v1"),
    Planted("fwd", "sum not rescaled", "tiles",
            "b_sum = b_sum * b_rescale", "b_sum = b_sum", "v1"),
    Planted("fwd", "row without keys", "tiles",
            "b_sum = tl.where(m_none, 1.0, b_sum)", "b_sum = b_sum", "v1-T>S"),
    Planted("fwd", "log of the sum without the sum", "tiles",
            "b_max + tl.log2(b_sum)", "b_max", "v1"),
]  # fmt: skip
FORWARD = [
    Planted("fwd", "sign of λ", "forward", "b_o1 - b_lam[:, None] * b_o2",
            "b_o1 + b_lam[:, None] * b_o2", "v1"),
    Planted("fwd", "maps exchanged", "forward", "b_o1 - b_lam[:, None] * b_o2",
            "b_o2 - b_lam[:, None] * b_o1", "v1"),
    Planted("fwd", "λ of the first token", "forward", "b_queries.to(tl.int64) * stride_lt",
            "b_queries.to(tl.int64) * 0", "v1"),
    Planted("fwd", "heads", "forward", "i_head // group", "i_head % group", "v1-heads"),
    Planted("fwd", "no scale in map 1", "forward",
            'b_s1 = tl.dot(b_q1, tl.trans(b_k), input_precision="ieee") * scale_log2',
            'b_s1 = tl.dot(b_q1, tl.trans(b_k), input_precision="ieee")', "v1"),
    Planted("fwd", "K1 for K2", "forward", "p_k + stride_km, i_key", "p_k, i_key", "v1"),
    Planted("fwd", "log-sums exchanged", "forward",
            "tl.store(p_lse + b_queries, b_lse1", "tl.store(p_lse + b_queries, b_lse2", "v1"),
    Planted("fwd", "O1 for O2", "forward", "store_tile(p_o2, i_query, b_o2,",
            "store_tile(p_o2, i_query, b_o1,", "v1"),
    Planted("fwd", "last block of queries not launched", "forward",
            "triton.cdiv(num_queries, config.block_m)", "num_queries // config.block_m", "v1"),
    Planted("fwd", "intervals begin in the second loop", "forward", "0 if RANGES else 1, 3",
            "1, 3", "v1-band", 2, 2),
    Planted("fwd", "nothing for the gradients", "forward", "if not INFERENCE", "if INFERENCE",
            "v1"),
    Planted("fwd by map", "order of the maps", "forward", "    if MAP_BY_MAP:\n",
            "    if MAP_BY_MAP:\n        p_q += stride_qm\n        p_k += stride_km\n"
            "        stride_qm, stride_km = -stride_qm, -stride_km\n", "v1-by-map"),
    Planted("fwd by map", "K1 for K2", "forward", "p_k + stride_km, p_v, p_padding",
            "p_k, p_v, p_padding", "v1-by-map"),
    Planted("fwd by map", "O1 for O2", "forward", "store_tile(p_o, i_query, b_o2,",
            "store_tile(p_o, i_query, b_o2 * 0.0,", "v1-by-map"),
    Planted("fwd by map", "diagonal ignored", "forward", "0 if RANGES else 1, 3", "1, 2",
            "v1-by-map", 1, 2),
]  # fmt: skip
BACKWARD = [
    Planted("preprocess", "sign of λ", "backward", "+ b_lam * b_delta2", "- b_lam * b_delta2",
            "v1"),
    Planted("preprocess", "D1 and D2 exchanged", "backward",
            "tl.store(p_delta + b_queries, b_delta1", "tl.store(p_delta + b_queries, b_delta2",
            "v1"),
    Planted("preprocess", "sign of dλ", "backward", "tl.store(p_dlam, -b_delta2",
            "tl.store(p_dlam, b_delta2", "v1"),
    Planted("dkv", "mask one key short", "backward_keys", "b_last[None, :], RANGES",
            "b_last[None, :] - 1, RANGES", "v1"),
    Planted("dkv", "no λ", "backward_keys", " * b_lam[None, :]", "", "v1"),
    Planted("dkv", "sign of λ in dV", "backward_keys", "(b_p1 - b_p2)", "(b_p1 + b_p2)", "v1"),
    Planted("dkv", "sign of dS2", "backward_keys", "(b_delta2[None, :] - b_dp)",
            "(b_dp - b_delta2[None, :])", "v1"),
    Planted("dkv", "D2 for D1", "backward_keys", "(b_dp - b_delta1[None, :])",
            "(b_dp - b_delta2[None, :])", "v1"),
    Planted("dkv", "heads", "backward_keys", "i_kv_head * group + i_split * members + i_member",
            "i_member * num_kv_heads + i_kv_head", "v1-heads"),
    Planted("dkv", "no scale", "backward_keys", "b_dk1 * scale", "b_dk1", "v1"),
    Planted("dkv", "shared keys from map 1 alone", "backward_keys",
            'b_dk1 = tl.dot(b_ds2, b_q2, b_dk1, input_precision="ieee")', "b_dk1 = b_dk1", "v2"),
    Planted("dkv", "K1 for K2", "backward_keys", "p_k + stride_km, i_key", "p_k, i_key", "v1"),
    Planted("dq", "K1 for K2", "backward", "p_k + stride_km, i_key", "p_k, i_key", "v1"),
    Planted("dq", "mask one key short", "backward", "b_last[:, None], RANGES",
            "b_last[:, None] - 1, RANGES", "v1"),
    Planted("dq", "sign of λ", "backward", "(-scale * b_lam)", "(scale * b_lam)", "v1"),
    Planted("dq", "no scale", "backward", "b_dq1 * scale", "b_dq1", "v1"),
    Planted("dq", "D1 for D2", "backward", "(b_dp - b_delta2[:, None])",
            "(b_dp - b_delta1[:, None])", "v1"),
    Planted("dq", "heads", "backward", "i_head // group", "i_head % group", "v1-heads"),
    Planted("dq", "keys of map 1 for map 2", "backward", "b_k2, b_dq2", "b_k1, b_dq2", "v1"),
    Planted("bwd", "no scale of dQ", "backward", 'gradients["DQ"].mul_(scale)', 'gradients["DQ"]',
            "v1-one-kernel"),
    Planted("bwd", "sign of λ in dQ", "backward_keys", "tl.dot(tl.trans(b_ds2), b_k2",
            "tl.dot(tl.trans(-b_ds2), b_k2", "v1-one-kernel"),
    Planted("bwd", "K1 for K2 in dQ", "backward_keys", "tl.dot(tl.trans(b_ds2), b_k2",
            "tl.dot(tl.trans(b_ds2), b_k1", "v1-one-kernel"),
    Planted("bwd", "dQ2 in the place of dQ1", "backward_keys", "p_dq + HEAD_DIM, i_query",
            "p_dq, i_query", "v1-one-kernel"),
    Planted("bwd", "heads of dQ", "backward_keys", "num_heads + i_head) * 2 * HEAD_DIM",
            "num_heads + i_kv_head) * 2 * HEAD_DIM", "v1-one-kernel-heads"),
    Planted("bwd", "dQ of shared keys", "backward_keys", "tl.dot(tl.trans(b_ds1), b_k1",
            "tl.dot(tl.trans(b_ds2), b_k1", "v2-one-kernel"),
    Planted("bwd", "dQ not begun at zero", "launch", "torch.zeros(q.shape", "torch.ones(q.shape",
            "v1-one-kernel"),
    Planted("bwd", "diagonal ignored", "backward_keys", "tl.static_range(0, 3",
            "tl.static_range(1, 3", "v1-one-kernel"),
    Planted("dkv", "intervals end in the second loop", "backward_keys", "3 if RANGES else 2", "2",
            "v1-band"),
    Planted("dkq and dv", "dV by the launch of dK", "backward_keys", "(b_p1 - b_p2)", "b_p1",
            "v1-dkq"),
    Planted("dkq and dv", "no dQ2", "backward_keys", "i_query, b_dq2,", "i_query, b_dq2 * 0.0,",
            "v1-dkq"),
    Planted("dk and dv", "values one column wide", "backward_keys",
            "p_v, i_key, stride_vs, num_keys, BLOCK_N, VALUE_DIM,",
            "p_v, i_key, stride_vs, num_keys, BLOCK_N, VALUE_DIM // 2,", "v1-dk"),
    Planted("dkv in parts", "one part left out", "launch", "parts.sum(0)", "parts[1:].sum(0)",
            "v1-parts"),
    Planted("dkv in parts", "every part the first", "backward_keys", "i_split * members + ", "",
            "v1-parts"),
    Planted("dkv in parts", "parts in the place of the first", "backward_keys",
            "(i_split * batch + i_batch)", "i_batch", "v1-parts"),
    Planted("dkv in parts", "key/value heads", "backward_keys",
            "tl.program_id(1).to(tl.int64) // splits", "tl.program_id(1).to(tl.int64) % splits",
            "v1-parts-heads"),
]  # fmt: skip
SOFTMAX = [
    Planted("softmax fwd", "no scale", "softmax", 'precision="ieee") * scale_log2',
            'precision="ieee")', "softmax"),
    Planted("softmax fwd", "no mask", "softmax", 'tl.where(m_seen, b_s, float("-inf"))', "b_s",
            "softmax"),
    Planted("softmax fwd", "heads", "softmax", "i_head // group", "i_head % group",
            "softmax-heads"),
    Planted("softmax fwd", "maximum for the log-sum", "softmax",
            "tl.store(p_lse + b_queries, b_lse", "tl.store(p_lse + b_queries, b_max", "softmax"),
    Planted("softmax fwd", "last block of queries not launched", "softmax",
            "triton.cdiv(num_queries, config.block_m)", "num_queries // config.block_m", "softmax"),
    Planted("softmax preprocess", "sign of D", "softmax_backward", "b_delta = tl.sum(",
            "b_delta = -tl.sum(", "softmax"),
    Planted("softmax dkv", "mask ignored", "softmax_backward",
            'tl.where(m_seen, b_s, float("-inf"))', "b_s", "softmax", 1, 2),
    Planted("softmax dkv", "mask one key short", "softmax_backward", "b_last[None, :], RANGES",
            "b_last[None, :] - 1, RANGES", "softmax"),
    Planted("softmax dkv", "sign of D", "softmax_backward", "(b_dp - b_delta[None, :])",
            "(b_dp + b_delta[None, :])", "softmax"),
    Planted("softmax dkv", "heads", "softmax_backward",
            "i_kv_head * group + i_split * members + i_member",
            "i_member * num_kv_heads + i_kv_head", "softmax-heads"),
    Planted("softmax dkv", "no scale", "softmax_backward", "b_dk * scale", "b_dk", "softmax"),
    Planted("every dkv", "last block of keys not launched", "launch",
            "triton.cdiv(num_keys, config.block_n)", "num_keys // config.block_n", "softmax"),
    Planted("softmax dkv in parts", "every part the first", "softmax_backward",
            "i_split * members + ", "", "softmax-parts"),
    Planted("softmax bwd", "dQ not scaled", "softmax_backward", 'gradients["DQ"].mul_(scale)',
            'gradients["DQ"]', "softmax-one-kernel"),
    Planted("softmax bwd", "sign of dQ", "softmax_backward", "tl.dot(tl.trans(b_ds), b_k",
            "tl.dot(tl.trans(-b_ds), b_k", "softmax-one-kernel"),
    Planted("softmax bwd", "heads of dQ", "softmax_backward",
            "p_dq_head += (i_batch * num_queries * num_heads + i_head)",
            "p_dq_head += (i_batch * num_queries * num_heads + i_kv_head)",
            "softmax-one-kernel-heads"),
    Planted("softmax dq", "mask ignored", "softmax_backward",
            'tl.where(m_seen, b_s, float("-inf"))', "b_s", "softmax", 2, 2),
    Planted("softmax dq", "no D", "softmax_backward", "(b_dp - b_delta[:, None])", "b_dp",
            "softmax"),
    Planted("softmax dq", "no scale", "softmax_backward", "b_dq * scale", "b_dq", "softmax"),
    Planted("softmax dq", "heads", "softmax_backward", "i_head // group", "i_head % group",
            "softmax-heads"),
    Planted("softmax dq", "last block of queries not launched", "softmax_backward",
            "triton.cdiv(num_queries, config.block_m)", "num_queries // config.block_m", "softmax"),
]  # fmt: skip
DECODE = [
    Planted("decode", "mask one key short", "decode", "tl.maximum(position + 1, 0)",
            "tl.maximum(position, 0)", "decode"),
    Planted("decode", "window one key long", "decode", "position + 1 - window",
            "position - window", "decode-window"),
    Planted("decode", "lengths ignored", "decode",
            "length = tl.minimum(tl.load(p_lengths + i_b), num_keys)", "length = num_keys",
            "decode-lengths"),
    Planted("decode", "padding ignored", "decode", "m_seen = m_seen & (real[None, :] != 0)",
            "m_seen = m_seen", "decode-padded"),
    Planted("decode", "heads", "decode", "i_kv * GROUP + rows // 2 % GROUP",
            "rows // 2 % GROUP * num_kv_heads + i_kv", "decode"),
    Planted("decode", "maps exchanged", "decode", "i_map = rows % 2", "i_map = 1 - rows % 2",
            "decode"),
    Planted("decode", "K1 for K2", "decode", "channel_map.to(tl.int64) * stride_km",
            "channel_map.to(tl.int64) * 0", "decode"),
    Planted("decode", "accumulator not rescaled", "decode", "b_acc = b_acc * b_shrink[:, None]",
            "b_acc = b_acc", "decode"),
    Planted("decode", "sum not rescaled", "decode", "b_sum = b_sum * b_shrink", "b_sum = b_sum",
            "decode"),
    Planted("decode", "no scale", "decode", " * scale_log2\n        m_seen", "\n        m_seen",
            "decode"),
    Planted("decode", "last partial tile ignored", "decode", "tl.minimum(end, begin + part)",
            "tl.minimum(end, begin + part) // BLOCK_KEYS * BLOCK_KEYS", "decode"),
    Planted("combine", "sign of λ", "decode", "b_o1 - lam * b_o2", "b_o1 + lam * b_o2", "decode"),
    Planted("combine", "map 1 for map 2", "decode", "row + 1, num_rows", "row, num_rows",
            "decode"),
    Planted("combine", "heads of the parts", "decode", "num_kv_heads + i_h // GROUP",
            "num_kv_heads + i_h % GROUP", "decode"),
    Planted("combine", "parts not weighted", "decode", "b_weight = tl.exp2(b_max - base)",
            "b_weight = tl.exp2(b_max * 0.0)", "decode"),
    Planted("combine", "last part ignored", "decode", "m_splits = splits < num_splits",
            "m_splits = splits < num_splits - 1", "decode"),
    Planted("combine", "first parts not rescaled", "decode", "b_acc = b_acc * shrink",
            "b_acc = b_acc", "decode-parts"),
    Planted("paged decode", "place in the page ignored", "decode", "i_second = keys % PAGE_SIZE",
            "i_second = keys * 0", "decode-paged"),
    Planted("paged decode", "page of the first key", "decode", "stride_tb + keys // PAGE_SIZE",
            "stride_tb + keys * 0", "decode-paged"),
    Planted("paged decode", "table of the first row", "decode", "p_table + i_b * stride_tb",
            "p_table + i_b * 0", "decode-paged"),
    Planted("paged decode", "table ignored", "decode", "tl.minimum(tl.maximum(i_page, 0)",
            "tl.minimum(tl.maximum(keys // PAGE_SIZE, 0)", "decode-paged"),
    Planted("paged decode", "last page unknown", "decode", "num_pages - 1)", "num_pages - 4)",
            "decode-paged"),
]  # fmt: skip


ALL = TILES + FORWARD + BACKWARD + SOFTMAX + DECODE


def plant(monkeypatch, folder, call, planted=None):
    """Let the operators run copies of the kernels in the form of a call, perhaps with an error."""
    for name, value in CALLS[call].form.items():
        monkeypatch.setattr(configs, name, value)
    importlib.import_module(f"{kernels.__name__}.launch")  # repairs the interpreter: once is enough
    package = f"kernels_{uuid.uuid4().hex}"
    home = folder / package
    home.mkdir()
    for name in MODULES:
        source = Path(kernels.__path__[0], f"{name}.py").read_text(encoding="utf-8")
        if planted and planted.module == name:
            source = planted.in_source(source)
        for other in MODULES:
            source = source.replace(f"from {kernels.__name__}.{other} ", f"from {package}.{other} ")
        source = source.replace("interpreter.repair()", "pass")
        (home / f"{name}.py").write_text(source, encoding="utf-8")
    monkeypatch.syspath_prepend(folder)
    for name in MODULES:
        module = importlib.import_module(f"{package}.{name}")
        monkeypatch.setattr(kernels, name, module, raising=False)
    for name in [name for name in sys.modules if name.partition(".")[0] == package]:
        del sys.modules[name]


def check(call):
    case = CALLS[call]
    inputs = inputs_of(case.op, OpCase(name=call, **case.options), dtype=torch.bfloat16)
    if case.gap:
        inputs.options["key_padding_mask"][:, 5] = False
    gradients = case.op in (differential, softmax)
    with np.errstate(all="ignore"):  # of which a GPU knows nothing either
        assert_close_to_reference(case.op, inputs, backend="triton", gradients=gradients)


def calls():
    pushed = {x.call for x in ALL if x.name in EVERY_PUSH}
    return [pytest.param(x, marks=() if x in pushed else pytest.mark.scheduled) for x in CALLS]


@pytest.mark.parametrize("call", calls())
def test_copies_without_an_error_pass(call, monkeypatch, tmp_path):
    plant(monkeypatch, tmp_path, call)
    check(call)


def errors():
    marks = [() if x.name in EVERY_PUSH else pytest.mark.scheduled for x in ALL]
    return [pytest.param(x, id=str(x), marks=mark) for x, mark in zip(ALL, marks, strict=True)]


@pytest.mark.parametrize("planted", errors())
def test_a_planted_error_is_caught(planted, monkeypatch, tmp_path):
    plant(monkeypatch, tmp_path, planted.call, planted)
    with pytest.raises(AssertionError, match="further from the float64 reference"):
        check(planted.call)
