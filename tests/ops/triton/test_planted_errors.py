"""An error planted in each kernel is caught by the assertion that every kernel test makes.

An error is one changed place in the source, at which a copy of the kernels is defined anew. In
bfloat16, whose tolerance is the widest, at lengths of two or three of the interpreter's tiles.
"""

import importlib
import sys
import uuid
from dataclasses import dataclass
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

from .kernel_calls import decode, differential, inputs_of, softmax

pytestmark = pytest.mark.skipif(
    not configs.interpreted(), reason="copies of the kernels are defined for the interpreter"
)

EVERY_PUSH = (
    "mask one key short", "sign of λ", "sign of λ in dV", "accumulator not rescaled", "heads",
    "no mask", "sign", "last partial tile ignored",
)  # fmt: skip
"""Errors by name, of whichever kernel; the others are planted in the scheduled tier."""
MODULES = ("tiles", "forward", "backward", "softmax", "decode")


def decode_in_19_parts(q, k, v, lam, *, backend, **options):
    """More parts than the merge takes at once; 1,200 keys leave none of them empty."""
    if backend == "reference":
        return decode(q, k, v, lam, backend=backend, **options)
    scale, mask = q.shape[-1] ** -0.5, AttentionMask(**options)
    return kernels.decode.decode(q, k, v, lam, scale=scale, mask=mask, num_splits=19)


V1 = {"batch": 1, "num_heads": 4, "num_kv_heads": 2, "head_dim": 32, "value_dim": 64,
      "num_queries": 18, "num_keys": 41, "lam_axes": "bth"}  # fmt: skip
V2 = V1 | {"value_dim": 32, "shared_keys": True}
FEW = V1 | {"num_queries": 3, "num_keys": 300}
CALLS = {
    "v1": (differential, V1),
    "v1-cross": (differential, V1 | {"causal": False}),
    "v1-T>S": (differential, V1 | {"num_queries": 35, "num_keys": 20}),
    "v1-window": (differential, V1 | {"window": 20}),
    "v1-padded": (differential, V1 | {"padding": ((20, 3),)}),
    "v2": (differential, V2),
    "softmax": (softmax, V2),
    "softmax-cross": (softmax, V2 | {"causal": False}),
    "decode": (decode, FEW),
    "decode-window": (decode, FEW | {"window": 140}),
    "decode-lengths": (decode, FEW | {"kv_lengths": (170,)}),
    "decode-padded": (decode, FEW | {"padding": ((130, 3),)}),
    "decode-parts": (decode_in_19_parts, FEW | {"num_keys": 1200}),
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
            "v1-padded"),
    Planted("fwd and dq", "diagonal in the unmasked loop", "tiles",
            "full = tl.maximum(i_query + (num_keys - num_queries) + 1, 0) // BLOCK_N * BLOCK_N",
            "full = tl.minimum(tl.cdiv(i_query + (num_keys - num_queries) + 1, BLOCK_N), "
            "num_keys // BLOCK_N) * BLOCK_N", "v1"),
    Planted("fwd and dq", "last partial tile ignored", "tiles",
            "            stop = num_keys\n", "            stop = num_keys // BLOCK_N * BLOCK_N\n",
            "v1-cross"),
    Planted("fwd and dq", "last tile of the diagonal ignored", "tiles",
            "stop = tl.maximum(i_end + (num_keys - num_queries), 0)",
            "stop = tl.maximum(i_end + (num_keys - num_queries), 0) // BLOCK_N * BLOCK_N", "v1"),
    Planted("dkv", "last partial tile ignored", "tiles",
            "        stop = num_queries\n", "        stop = num_queries // BLOCK_M * BLOCK_M\n",
            "v1"),
    Planted("dkv", "first tile of the diagonal ignored", "tiles",
            "start = tl.maximum(i_key - (num_keys - num_queries), 0) // BLOCK_M * BLOCK_M",
            "start = tl.cdiv(tl.maximum(i_key - (num_keys - num_queries), 0), BLOCK_M) * BLOCK_M",
            "v1"),
    Planted("dkv", "diagonal in the unmasked loop", "tiles",
            "full = (full + BLOCK_M - 1) // BLOCK_M * BLOCK_M", "full = full // BLOCK_M * BLOCK_M",
            "v1"),
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
    Planted("fwd", "heads", "forward", "i_head // group", "i_head % group", "v1"),
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
]  # fmt: skip
BACKWARD = [
    Planted("preprocess", "sign of λ", "backward", "+ b_lam * b_delta2", "- b_lam * b_delta2",
            "v1"),
    Planted("preprocess", "D1 and D2 exchanged", "backward",
            "tl.store(p_delta + b_queries, b_delta1", "tl.store(p_delta + b_queries, b_delta2",
            "v1"),
    Planted("preprocess", "sign of dλ", "backward", "tl.store(p_dlam, -b_delta2",
            "tl.store(p_dlam, b_delta2", "v1"),
    Planted("dkv", "mask one key short", "backward", "b_last[None, :], RANGES",
            "b_last[None, :] - 1, RANGES", "v1"),
    Planted("dkv", "no λ", "backward", " * b_lam[None, :]", "", "v1"),
    Planted("dkv", "sign of λ in dV", "backward", "(b_p1 - b_p2)", "(b_p1 + b_p2)", "v1"),
    Planted("dkv", "sign of dS2", "backward", "(b_delta2[None, :] - b_dp)",
            "(b_dp - b_delta2[None, :])", "v1"),
    Planted("dkv", "D2 for D1", "backward", "(b_dp - b_delta1[None, :])",
            "(b_dp - b_delta2[None, :])", "v1"),
    Planted("dkv", "heads", "backward", "i_kv_head * group + i_member",
            "i_member * num_kv_heads + i_kv_head", "v1"),
    Planted("dkv", "no scale", "backward", "b_dk1 * scale", "b_dk1", "v1"),
    Planted("dkv", "shared keys from map 1 alone", "backward",
            'b_dk1 = tl.dot(b_ds2, b_q2, b_dk1, input_precision="ieee")', "b_dk1 = b_dk1", "v2"),
    Planted("dkv", "K1 for K2", "backward", "p_k + stride_km, i_key", "p_k, i_key", "v1", 1, 2),
    Planted("dq", "K1 for K2", "backward", "p_k + stride_km, i_key", "p_k, i_key", "v1", 2, 2),
    Planted("dq", "mask one key short", "backward", "b_last[:, None], RANGES",
            "b_last[:, None] - 1, RANGES", "v1"),
    Planted("dq", "sign of λ", "backward", "(-scale * b_lam)", "(scale * b_lam)", "v1"),
    Planted("dq", "no scale", "backward", "b_dq1 * scale", "b_dq1", "v1"),
    Planted("dq", "D1 for D2", "backward", "(b_dp - b_delta2[:, None])",
            "(b_dp - b_delta1[:, None])", "v1"),
    Planted("dq", "heads", "backward", "i_head // group", "i_head % group", "v1"),
    Planted("dq", "keys of map 1 for map 2", "backward", "b_k2, b_dq2", "b_k1, b_dq2", "v1"),
]  # fmt: skip
SOFTMAX = [
    Planted("softmax, all", "no scale", "softmax", " * scale_log2\n    if MASKED",
            "\n    if MASKED", "softmax"),
    Planted("softmax, all", "no mask", "softmax", 'tl.where(m_seen, b_s, float("-inf"))', "b_s",
            "softmax"),
    Planted("softmax fwd", "heads", "softmax", "i_head // group", "i_head % group", "softmax", 1,
            2),
    Planted("softmax fwd", "maximum for the log-sum", "softmax",
            "tl.store(p_lse + b_queries, b_lse", "tl.store(p_lse + b_queries, b_max", "softmax"),
    Planted("softmax fwd", "last block of queries not launched", "softmax",
            "triton.cdiv(num_queries, config.block_m)", "num_queries // config.block_m", "softmax",
            1, 3),
    Planted("softmax preprocess", "sign", "softmax", "b_delta = tl.sum(", "b_delta = -tl.sum(",
            "softmax"),
    Planted("softmax dkv", "mask one key short", "softmax", "b_last[None, :], RANGES",
            "b_last[None, :] - 1, RANGES", "softmax"),
    Planted("softmax dkv", "sign of D", "softmax", "(b_dp - b_delta[None, :])",
            "(b_dp + b_delta[None, :])", "softmax"),
    Planted("softmax dkv", "heads", "softmax", "i_kv_head * group + i_member",
            "i_member * num_kv_heads + i_kv_head", "softmax"),
    Planted("softmax dkv", "no scale", "softmax", "b_dk * scale", "b_dk", "softmax"),
    Planted("softmax dkv", "last block of keys not launched", "softmax",
            "triton.cdiv(num_keys, config.block_n)", "num_keys // config.block_n", "softmax"),
    Planted("softmax dq", "no D", "softmax", "(b_dp - b_delta[:, None])", "b_dp", "softmax"),
    Planted("softmax dq", "no scale", "softmax", "b_dq * scale", "b_dq", "softmax"),
    Planted("softmax dq", "heads", "softmax", "i_head // group", "i_head % group", "softmax", 2, 2),
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
    Planted("combine", "heads", "decode", "num_kv_heads + i_h // GROUP",
            "num_kv_heads + i_h % GROUP", "decode"),
    Planted("combine", "parts not weighted", "decode", "b_weight = tl.exp2(b_max - base)",
            "b_weight = tl.exp2(b_max * 0.0)", "decode"),
    Planted("combine", "last part ignored", "decode", "m_splits = splits < num_splits",
            "m_splits = splits < num_splits - 1", "decode"),
    Planted("combine", "accumulator not rescaled", "decode", "b_acc = b_acc * shrink",
            "b_acc = b_acc", "decode-parts"),
]  # fmt: skip


ALL = TILES + FORWARD + BACKWARD + SOFTMAX + DECODE


def plant(monkeypatch, folder, planted=None):
    """Let the operators run copies of the kernels, one of them with the error."""
    package = f"kernels_{uuid.uuid4().hex}"
    home = folder / package
    home.mkdir()
    for name in MODULES:
        source = Path(kernels.__path__[0], f"{name}.py").read_text(encoding="utf-8")
        if planted and planted.module == name:
            source = planted.in_source(source)
        source = source.replace(f"from {kernels.__name__}.tiles ", f"from {package}.tiles ")
        (home / f"{name}.py").write_text(source, encoding="utf-8")
    monkeypatch.syspath_prepend(folder)
    for name in MODULES:
        module = importlib.import_module(f"{package}.{name}")
        monkeypatch.setattr(kernels, name, module, raising=False)
        monkeypatch.delitem(sys.modules, module.__name__)


def check(call):
    op, options = CALLS[call]
    inputs = inputs_of(op, OpCase(name=call, **options), dtype=torch.bfloat16)
    gradients = op in (differential, softmax)
    with np.errstate(all="ignore"):  # of which a GPU knows nothing either
        assert_close_to_reference(op, inputs, backend="triton", gradients=gradients)


def calls():
    pushed = {x.call for x in ALL if x.name in EVERY_PUSH}
    return [pytest.param(x, marks=() if x in pushed else pytest.mark.scheduled) for x in CALLS]


@pytest.mark.parametrize("call", calls())
def test_copies_without_an_error_pass(call, monkeypatch, tmp_path):
    plant(monkeypatch, tmp_path)
    check(call)


def errors():
    marks = [() if x.name in EVERY_PUSH else pytest.mark.scheduled for x in ALL]
    return [pytest.param(x, id=str(x), marks=mark) for x, mark in zip(ALL, marks, strict=True)]


@pytest.mark.parametrize("planted", errors())
def test_a_planted_error_is_caught(planted, monkeypatch, tmp_path):
    plant(monkeypatch, tmp_path, planted)
    with pytest.raises(AssertionError, match="further from the float64 reference"):
        check(planted.call)
