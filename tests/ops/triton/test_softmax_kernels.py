"""The softmax kernels in float32 against the float64 operator."""

from dataclasses import replace

import pytest
import torch

from diffattn.lab.testing.assertions import assert_equal_to_rounding
from diffattn.lab.testing.inputs import OpCase, make_diff_attention_inputs
from diffattn.lab.testing.rounding import rounding_steps
from diffattn.ops.backends import custom_op
from diffattn.ops.inputs.masking import AttentionMask
from diffattn.ops.softmax_attention import softmax_attention

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
    """The first map of the other operator's inputs; λ plays no part."""
    inputs = make_diff_attention_inputs(case, device=kernel_device)
    tensors = [inputs.q.detach()[:, :, :, 0], inputs.k.detach(), inputs.v.detach()]
    tensors = [x.requires_grad_() for x in tensors]
    options = {"scale": case.head_dim**-0.5} | inputs.options
    exact = [x.detach().double().requires_grad_() for x in tensors]
    expected = softmax_attention(*exact, **options)
    scale = options.pop("scale")
    actual = custom_op.softmax_attention(*tensors, scale=scale, mask=AttentionMask(**options))
    steps, magnitude = rounding_steps(inputs)
    assert_equal_to_rounding(actual, expected, steps=steps, magnitude=magnitude)

    weights = torch.randn(actual.shape, dtype=torch.float64, device=kernel_device)
    wanted = torch.autograd.grad(expected, exact, weights)
    grads = torch.autograd.grad(actual, tensors, weights.float())
    for got, want in zip(grads, wanted, strict=True):
        # Each gradient sums products of the output's gradient over channels and rows.
        size = magnitude * float(weights.abs().max()) * case.value_dim**0.5
        size *= 1 + max(float(x.detach().abs().max()) for x in tensors)
        assert_equal_to_rounding(got, want, steps=steps, magnitude=size)
