"""Every refusal says where, what must hold, and what came."""

import re

import pytest
import torch

from diffattn.errors import ShapeError
from diffattn.ops.attention import diff_attention, diff_attention_maps

B, T, S, H, HKV, D, DV = 2, 3, 5, 4, 2, 3, 6
SHAPES = {"q": (B, T, H, 2, D), "k": (B, S, HKV, 2, D), "v": (B, S, HKV, DV), "lam": ()}


def zeros(*shape, dtype=torch.float32, device="cpu"):
    return torch.zeros(shape, dtype=dtype, device=device)


def int32(*values):
    return torch.tensor(values, dtype=torch.int32)


def arguments(**changes):
    return {name: torch.zeros(shape) for name, shape in SHAPES.items()} | changes


def packed(**changes):
    """T = S and B = 1, as ``cu_seqlens`` needs."""
    tensors = {"q": zeros(1, S, H, 2, D), "k": zeros(1, S, HKV, 2, D), "v": zeros(1, S, HKV, DV)}
    return tensors | changes


CU_NEEDS = "cu_seqlens describes one packed row, so it needs B = 1, T = S and no kv_lengths, got "
BOTH = [  # of both functions
    ({"q": zeros(B, T, H, D)}, "q must be [B, T, H, 2, D] or in groups [B, T, G, R + 1, D], "
     "got [2, 3, 4, 3]."),
    ({"q": zeros(B, T, H, 4, D), "lam": zeros(4)},
     "lam must be broadcastable to [B, T, H] = [2, 3, 12], got [4]."),
    ({"k": zeros(B, S, D)}, "k must be [B, S, Hkv, 2, D] or [B, S, Hkv, D] with B = 2 and D = 3, "
     "got [2, 5, 3]."),
    ({"k": zeros(B, S, 3, 2, D)},
     "the number of key/value heads must divide the 4 query heads, got 3. "
         "Heads are on axis 2, tokens on axis 1: [B, T, H, ...]."),
    ({"q": zeros(B, T, H, 2, D, dtype=torch.int64)},
     "q must have a dtype in {float16, bfloat16, float32, float64}, got torch.int64."),
    ({"k": zeros(B, S, HKV, 2, D, dtype=torch.bfloat16)},
     "k must have q's dtype torch.float32, got torch.bfloat16."),
    ({"k": zeros(B, S, HKV, 2, D, device="meta")}, "k must be on cpu like q, got meta."),
    ({"lam": "0.5"}, "lam must be a number or a tensor, got '0.5'."),
    ({"lam": zeros(dtype=torch.float64)}, "lam must be float32, got torch.float64."),
    ({"lam": torch.tensor([0.1, float("nan"), 0.3, 0.4])}, "lam must not be NaN, got NaN."),
    ({"window": 0}, "window must be an integer from 1 to 2147483647 tokens, got 0."),
    ({"kv_lengths": torch.tensor([1, 2])},
     "kv_lengths must be torch.int32 [2], got torch.int64 [2]."),
    ({"kv_lengths": int32(3, 6)}, "kv_lengths must lie in [0, S = 5], got 3 to 6."),
    ({"cu_seqlens": int32(0, 4)}, CU_NEEDS + "B = 2, T = 3, S = 5, kv_lengths unset."),
    (packed(cu_seqlens=int32(0, 5), kv_lengths=int32(5)),
     CU_NEEDS + "B = 1, T = 5, S = 5, kv_lengths set."),
    (packed(cu_seqlens=int32(0, 3, 2, 5)), "cu_seqlens must rise from 0 to S = 5, "
     "got [0, 3, 2, 5]."),
    (packed(cu_seqlens=int32(0, 1, 1, 2, 2, 3, 3, 4, 6)),
     "cu_seqlens must rise from 0 to S = 5, got [0, 1, 1, 2, 2, 3, 3] ... 6."),
]  # fmt: skip
VALUES = [  # of the operator alone
    ({"v": zeros(B, S, H, DV)},
     "v must be [B, S, Hkv, Dv] with [B, S, Hkv] = [2, 5, 2], got [2, 5, 4, 6]."),
    ({"v": zeros(B, S, HKV, DV, dtype=torch.float16)},
     "v must have q's dtype torch.float32, got torch.float16."),
]  # fmt: skip
ROWS = [  # of the maps alone
    (torch.tensor([0, -1]), "rows must lie in [0, T = 3), got -1 to 0."),
    (torch.tensor([[1]]), "rows must be int64 [R], got torch.int64 [1, 1]."),
    (torch.tensor([True, False, True, False]), "rows must be int64 [R], got torch.bool [4]."),
]


def raises(where, message):
    return pytest.raises(ShapeError, match="^" + re.escape(f"{where}: {message}") + "$")


@pytest.mark.parametrize(("changes", "message"), BOTH + VALUES)
def test_operator(changes, message):
    with raises("diff_attention", message):
        diff_attention(**arguments(**changes))


@pytest.mark.parametrize(("changes", "message"), BOTH)
def test_maps(changes, message):
    kept = {name: x for name, x in arguments(**changes).items() if name != "v"}
    with raises("diff_attention_maps", message):
        diff_attention_maps(**kept)


@pytest.mark.parametrize(("rows", "message"), ROWS)
def test_rows(rows, message):
    kept = {name: x for name, x in arguments().items() if name != "v"}
    with raises("diff_attention_maps", message):
        diff_attention_maps(**kept, rows=rows)


@pytest.mark.parametrize("backend", ["auto", "reference"])
def test_what_is_documented_passes(backend):
    """The calls that the others differ from by one thing; borders of every legal kind."""
    diff_attention(**arguments(), backend=backend)
    diff_attention(**arguments(lam=zeros(B, 1, 1)), kv_lengths=int32(0, S), backend=backend)
    lam = {"lam": zeros()}
    for borders in (int32(0, S), int32(0, 0, 2, 2, S, S)):
        diff_attention(**packed(cu_seqlens=borders, **lam), window=99, backend=backend)
    strided = int32(0, 9, 2, 9, S)[::2]
    diff_attention(**packed(cu_seqlens=strided, **lam), backend=backend)


def test_infinite_lambda_is_the_callers_business():
    """Only NaN is refused: λ is learned, and a diverging run should show what it does."""
    out = diff_attention(**arguments(v=torch.ones(SHAPES["v"]), lam=torch.tensor(float("inf"))))
    assert (out == -torch.inf).any()
