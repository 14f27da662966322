"""The assertions fail when they should."""

import pytest
import torch

from diffattn.ops.diff_attention.api import diff_attention
from diffattn.testing.assertions import assert_close_to_reference, assert_equal_to_rounding
from diffattn.testing.inputs import OP_CASES, OpCase, make_diff_attention_inputs
from diffattn.testing.rounding import rounding_errors

CASE = OpCase(name="", num_queries=9, num_keys=13, num_kv_heads=2, lam_axes="bth")


def with_gradient_of(index, factor):
    """The reference, whose gradient of one argument is ``factor`` times the right one."""

    def op(*tensors):
        tensors = list(tensors)
        x = tensors[index]
        tensors[index] = x + (factor - 1) * (x - x.detach())
        return diff_attention(*tensors, backend="reference")

    return op


def half(q, k, v, lam):
    return diff_attention(q.half(), k.half(), v.half(), lam).float()


WRONG = {
    "scale": lambda q, k, v, lam: diff_attention(q, k, v, lam, scale=0.25),  # not 8 ** -0.5
    "alignment": lambda q, k, v, lam: diff_attention(q, k[:, :-1], v[:, :-1], lam),
    "maps": lambda q, k, v, lam: diff_attention(q.flip(3), k.flip(3), v, lam),
    "NaN": lambda q, k, v, lam: diff_attention(q, k, v, lam) * torch.nan,
    "dtype": lambda q, k, v, lam: diff_attention(q, k, v, lam).double(),
    "shape": lambda q, k, v, lam: diff_attention(q, k, v, lam)[:, :1],
    "gradient of q": with_gradient_of(0, 1.25),
    "gradient of k": with_gradient_of(1, 1.25),
    "gradient of v": with_gradient_of(2, 1.25),
    "gradient of lam": with_gradient_of(3, 1.25),
}
ROUNDED = {
    "λ in bfloat16": lambda q, k, v, lam: diff_attention(q, k, v, lam.bfloat16().float()),
    "all in float16": half,
}


def op_with(wrong):
    def op(*tensors, backend, **options):
        if backend == "wrong":
            return wrong(*tensors)
        return diff_attention(*tensors, backend=backend, **options)

    return op


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["fp32", "bf16"])
@pytest.mark.parametrize("name", WRONG)
def test_a_wrong_backend_is_noticed(name, dtype):
    """bfloat16 too, where the budget is some percent."""
    inputs = make_diff_attention_inputs(CASE, dtype=dtype)
    with pytest.raises(AssertionError, match=f"backend 'wrong' in {dtype}") as error:
        assert_close_to_reference(op_with(WRONG[name]), inputs, backend="wrong")
    if name.startswith("gradient"):
        assert name in str(error.value)
        assert "output" not in str(error.value)


@pytest.mark.parametrize("name", ROUNDED)
def test_lost_digits_are_noticed(name):
    with pytest.raises(AssertionError, match="than rounding explains: output: error"):
        assert_close_to_reference(
            op_with(ROUNDED[name]), make_diff_attention_inputs(CASE), backend="wrong"
        )


def test_gradients_can_be_left_out():
    inputs = make_diff_attention_inputs(CASE)
    assert_close_to_reference(
        op_with(WRONG["gradient of k"]), inputs, backend="wrong", gradients=False
    )
    with pytest.raises(AssertionError):
        assert_close_to_reference(op_with(WRONG["maps"]), inputs, backend="wrong", gradients=False)


def test_equal_to_rounding():
    one = torch.ones(3)
    near = one + torch.tensor([0.0, 3.0, 0.0]) * torch.finfo(torch.float32).eps
    assert_equal_to_rounding(near, one, steps=3, magnitude=1.0)
    assert_equal_to_rounding(near, one.double(), steps=3, magnitude=1.0)
    for actual, expected, steps, magnitude in (
        (near, one, 2, 1.0),
        (near, one, 3, 0.5),
        (near, one[:2], 99, 1.0),
        (near[:1] * torch.nan, one[:1], 99, 1.0),
        (near, one * torch.inf, 99, 1.0),
    ):
        with pytest.raises(AssertionError):
            assert_equal_to_rounding(actual, expected, steps=steps, magnitude=magnitude)
