"""The assertions fail when they should."""

import pytest
import torch

from diffattn.ops.diff_attention.api import diff_attention
from diffattn.testing.assertions import assert_close_to_reference, assert_equal_to_rounding
from diffattn.testing.inputs import OP_CASES, OpCase, make_diff_attention_inputs
from diffattn.testing.rounding import rounding_steps, term_magnitudes

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


@pytest.mark.parametrize("overflow", [torch.inf, torch.nan])
def test_a_reference_that_overflows_is_no_budget(overflow):
    """An infinite budget would let everything pass."""

    def op(*tensors, backend, **options):
        out = diff_attention(*tensors, backend="reference", **options)
        if backend == "reference" and out.dtype == torch.float32:
            return out + overflow
        return out

    inputs = make_diff_attention_inputs(CASE)
    with pytest.raises(AssertionError, match=f"budget {overflow}"):
        assert_close_to_reference(op, inputs, backend="right", gradients=False)


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


@pytest.mark.parametrize("case", OP_CASES, ids=str)
def test_magnitudes_bound_the_values(case):
    """What may be rounded on the way is at least as large as the result, but for λ's sum."""
    inputs = make_diff_attention_inputs(case, dtype=torch.float64)
    out = diff_attention(*inputs.tensors().values(), backend="reference", **inputs.options)
    weights = torch.randn_like(out)
    grads = torch.autograd.grad(out, list(inputs.tensors().values()), weights)
    sizes = term_magnitudes(inputs, weights)
    values = {f"gradient of {n}": x for n, x in zip(inputs.tensors(), grads, strict=True)}
    values["output"] = out.detach()
    assert values.keys() == sizes.keys()
    slack = 1 + rounding_steps(inputs)[0] * torch.finfo(torch.float64).eps
    for name, value in values.items():
        assert sizes[name].shape == value.shape
        if name == "gradient of lam":  # terms added as squares: at most √n times smaller
            slack *= (out.numel() / value.numel()) ** 0.5
        assert (value.abs() <= slack * sizes[name]).all(), name


def test_magnitudes_see_what_cancels():
    """Equal maps at λ = 1: the output is 0 but O1 and O2 are not."""
    inputs = make_diff_attention_inputs(CASE)
    same = inputs.map_tensors(lambda x: x[:, :, :, :1].expand_as(x) if x.ndim == 5 else x)
    with torch.no_grad():
        same.lam.fill_(1.0)
    out = diff_attention(*same.tensors().values())
    size = term_magnitudes(same, torch.ones_like(out))["output"]
    assert out.abs().max() < 1e-5
    assert size.max() > 1
