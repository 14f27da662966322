"""The softmax kernels in float32 against the float64 reference."""

from dataclasses import replace

import pytest

from diffattn.lab.testing.assertions import assert_close_to_reference
from diffattn.lab.testing.inputs import OpCase

from .kernel_calls import inputs_of, softmax

pytest.importorskip("triton")

BASE = OpCase(name="causal", num_queries=18, num_keys=35, batch=1, num_heads=2, num_kv_heads=1,
              head_dim=32, value_dim=32, shared_keys=True)  # fmt: skip
CASES = [
    BASE,
    replace(BASE, name="T>S", num_queries=35, num_keys=17),
    replace(BASE, name="cross", causal=False),
    replace(BASE, name="wide-values", value_dim=64, num_kv_heads=2),
    replace(BASE, name="d96", num_queries=5, num_keys=7, head_dim=96, value_dim=96),
    replace(BASE, name="window", window=7, scale=0.3),
    replace(BASE, name="padding", batch=2, padding=((3, 0), (0, 35))),
    replace(BASE, name="kv_lengths", batch=2, kv_lengths=(0, 30)),
    replace(BASE, name="packed", num_queries=35, documents=(4, 0, 31)),
    replace(BASE, name="all", batch=2, window=9, kv_lengths=(35, 21), padding=((5, 0), (0, 2))),
]


@pytest.mark.parametrize("case", CASES, ids=str)
def test_equals_softmax_attention(case, kernel_device):
    inputs = inputs_of(softmax, case, device=kernel_device)
    assert_close_to_reference(softmax, inputs, backend="triton")
