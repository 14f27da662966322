"""What the tests of both Hopper kernels share: widths, chip, exact tensors, broken protocols."""

import math

import pytest
import torch

from diffattn.lab.testing.inputs import OpCase
from diffattn.ops.backends import reference
from diffattn.ops.inputs import kernel_support
from diffattn.ops.inputs.masking import AttentionMask, repeat_heads

from .gluon_emulation import Stuck

D64 = {"head_dim": 64, "value_dim": 128, "batch": 1, "num_heads": 1, "num_kv_heads": 1}
D128 = {"head_dim": 128, "value_dim": 256, "batch": 1, "num_heads": 1, "num_kv_heads": 1}
V2 = {"head_dim": 64, "value_dim": 64, "shared_keys": True, "batch": 1}
LONG = [
    OpCase(name="long", num_queries=2048, **(D128 | {"num_heads": 4})),
    OpCase(name="long-v2", num_queries=1111, num_keys=3000, **(V2 | {"num_heads": 4})),
]
"""For a GPU alone."""
on_hopper = pytest.mark.skipif(
    kernel_support.compute_capability(torch.device("cuda")) != kernel_support.HOPPER_CAPABILITY,
    reason="the Hopper kernel needs a CUDA device of compute capability 9.0",
)


def _count_one_reader(init):
    return lambda tile, count: init(tile, 1)


broken_protocols = pytest.mark.parametrize(
    ("break_it", "error"),
    [
        (lambda chip: setattr(chip, "init", _count_one_reader(chip.init)), AssertionError),
        (lambda chip: setattr(chip, "arrive", lambda tile, count: None), Stuck),
        (lambda chip: setattr(chip, "wait", lambda tile, phase: chip.current.pause()),
         AssertionError),
    ],
    ids=["slot freed by one of two readers", "no arrivals", "no waits"],
)  # fmt: skip


def exact_forward(q, k, v, lam, scale, causal):
    """O, O2 and the base-2 logarithms of the sums, infinite where a row sees nothing; float64."""
    q, k, v, lam = (x.detach().double() for x in (q, k, v, lam))
    mask, heads = AttentionMask(causal), q.shape[2]
    _, map_2, signed = reference.maps(q, k, lam, scale=scale, mask=mask)
    values = repeat_heads(v, heads).transpose(1, 2)
    out, out_2 = ((x @ values).transpose(1, 2) for x in (signed, map_2))
    keys = repeat_heads(k if k.ndim == 5 else k[:, :, :, None], heads)
    logits = torch.einsum("bihmd,bjhmd->bhmij", q, keys.expand(-1, -1, -1, 2, -1)) * scale
    visible = mask.visible_keys(q.shape[1], k.shape[1], device=q.device)
    if visible is not None:
        logits = logits.masked_fill(~visible[:, None, None], -math.inf)
    lse = logits.logsumexp(-1) / math.log(2)
    return out, out_2, lse.masked_fill(lse == -math.inf, math.inf)
