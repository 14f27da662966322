"""Numbers of numpy are taken wherever Python's are, and give the same."""

import numpy as np
import pytest
import torch

from diffattn.lab.testing.inputs import OpCase, make_diff_attention_inputs
from diffattn.ops.attention import diff_attention, diff_attention_maps
from diffattn.ops.backends.flex import flex_diff_attention
from diffattn.ops.softmax_attention import softmax_attention, softmax_attention_maps

CASE = OpCase(name="", num_queries=5, num_keys=7)
OPTIONS = {"window": np.uint8(3), "scale": np.float16(0.25), "causal": np.bool_(True)}
PLAIN = {"window": 3, "scale": 0.25, "causal": True}


@pytest.fixture
def tensors():
    inputs = make_diff_attention_inputs(CASE)
    return [x.detach() for x in (inputs.q, inputs.k, inputs.v, inputs.lam)]


def test_operators(tensors):
    q, k, v, lam = tensors
    one = q[:, :, :, 0], k[:, :, :, 0]
    for function, arguments in (
        (diff_attention, tensors),
        (softmax_attention, (*one, v)),
        (softmax_attention_maps, one),
        (diff_attention_maps, (q, k, lam)),
    ):
        actual, expected = function(*arguments, **OPTIONS), function(*arguments, **PLAIN)
        torch.testing.assert_close(actual, expected, rtol=0, atol=0)


@pytest.mark.parametrize(
    ("number", "dtype"),
    [(0.375, torch.bfloat16), (1, torch.float32), (np.float32(0.375), torch.float32),
     (np.int64(-2), torch.float64)],
)  # fmt: skip
def test_lambda_may_be_a_number(tensors, number, dtype):
    q, k, v = (x.to(dtype) for x in tensors[:3])
    wide = torch.float64 if dtype == torch.float64 else torch.float32
    lam = torch.tensor(float(number), dtype=wide)
    for backend in ("auto", "reference", "composed", "decode"):
        expected = diff_attention(q, k, v, lam, backend=backend)
        assert torch.equal(diff_attention(q, k, v, number, backend=backend), expected)
    for function in (diff_attention_maps, flex_diff_attention):
        arguments = (q, k) if function is diff_attention_maps else (q, k, v)
        actual, expected = function(*arguments, number), function(*arguments, lam)
        torch.testing.assert_close(actual, expected, rtol=0, atol=0)


def test_numbers_are_taken_in_compiled_code(tensors):
    torch._dynamo.reset()
    compiled = torch.compile(diff_attention, fullgraph=True, backend="eager")
    q, k, v, _ = tensors
    expected = diff_attention(q, k, v, 0.25, window=2)
    torch.testing.assert_close(compiled(q, k, v, 0.25, window=2), expected)
