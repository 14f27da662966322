"""λ: schedule, vectors, sigmoid, and its precision."""

import math

import pytest
import torch
from torch.autograd import gradcheck

from diffattn.ops.inputs.formulas import diff_lambda, lambda_init, sigmoid_lambda
from rounding_bounds import assert_equal_to_rounding


@pytest.mark.parametrize(
    ("layer_idx", "expected"), [(0, "0.2000"), (1, "0.3555"), (2, "0.4707"), (11, "0.7779")]
)
def test_schedule_gives_the_published_values(layer_idx, expected):
    assert f"{lambda_init(layer_idx):.4f}" == expected


def vectors(dtype, width=16):
    return [torch.randn(width, dtype=torch.float64).to(dtype) for _ in range(4)]


dtypes = pytest.mark.parametrize(
    ("dtype", "expected_dtype"),
    [(torch.float16, torch.float32), (torch.bfloat16, torch.float32),
     (torch.float32, torch.float32), (torch.float64, torch.float64)],
    ids=str,
)  # fmt: skip


@dtypes
def test_lambda_equals_equation_2(dtype, expected_dtype, device):
    q1, k1, q2, k2 = (x.to(device) * 0.5 for x in vectors(dtype))
    lam = diff_lambda(q1, k1, q2, k2, 0.3555)
    assert lam.shape == ()
    assert lam.dtype == expected_dtype
    dots = [
        math.fsum(a * b for a, b in zip(q.tolist(), k.tolist(), strict=True))
        for q, k in ((q1, k1), (q2, k2))
    ]
    expected = math.exp(dots[0]) - math.exp(dots[1]) + 0.3555
    sizes = [float((q.double() * k.double()).abs().sum()) for q, k in ((q1, k1), (q2, k2))]
    # A dot product of 16 is off by 16 roundings of its terms; exp multiplies by itself.
    magnitude = sum(math.exp(dot) * (1 + size) for dot, size in zip(dots, sizes, strict=True)) + 1
    assert_equal_to_rounding(
        lam, torch.tensor(expected, dtype=torch.float64, device=device), steps=18,
        magnitude=magnitude,
    )  # fmt: skip


def test_lambda_may_leave_zero_to_one():
    ones, zeros = torch.ones(4), torch.zeros(4)
    assert diff_lambda(ones, ones, zeros, zeros, 0.8) > 50
    assert diff_lambda(zeros, zeros, ones, ones, 0.8) < -50


def test_autocast_changes_no_bit_of_lambda(device):
    xs = [x.to(device) for x in vectors(torch.float32, 64)]
    expected = diff_lambda(*xs, 0.2)
    logits = torch.randn(2, 3, 4, device=device)
    with torch.autocast(device.type, dtype=torch.bfloat16):
        assert torch.equal(diff_lambda(*xs, 0.2), expected)
        assert torch.equal(sigmoid_lambda(logits), torch.sigmoid(logits))
    assert diff_lambda(*(x.bfloat16() for x in xs), 0.2) != expected  # bfloat16 would have shown


def test_derivatives():
    xs = [(0.3 * x).requires_grad_() for x in vectors(torch.float64, 3)]
    assert gradcheck(lambda *xs: diff_lambda(*xs, 0.2), xs)
    assert gradcheck(sigmoid_lambda, xs[0])


@dtypes
def test_sigmoid_lambda_is_float32_or_wider(dtype, expected_dtype, device):
    logits = torch.linspace(-9, 9, 24, device=device).view(2, 3, 4).to(dtype)
    lam = sigmoid_lambda(logits)
    assert lam.dtype == expected_dtype
    assert lam.shape == logits.shape
    expected = 1 / (1 + (-logits.double()).exp())
    assert_equal_to_rounding(lam, expected, steps=3, magnitude=1.0)
    assert (lam > 0).all()
    assert (lam < 1).all()
