"""Rotary position embedding, against rotation of complex numbers."""

import pytest
import torch

from diffattn.ops.inputs.formulas import apply_rotary, rotary_embedding
from rounding_bounds import assert_equal_to_rounding

DIM = 8


def rotated_by_hand(x, positions, theta=10_000.0):
    """Channels c and c + D/2 are one complex number, turned by position · theta^(−2c/D)."""
    x = x.double()
    half = x.shape[-1] // 2
    frequency = theta ** (-2 * torch.arange(half, dtype=torch.float64) / x.shape[-1])
    angle = positions.double()[..., None] * frequency  # [..., T, D / 2]
    if angle.ndim == 2:
        angle = angle[None]
    angle = angle.reshape(*angle.shape[:2], *(1,) * (x.ndim - 3), half)
    turned = torch.complex(x[..., :half], x[..., half:]) * torch.polar(
        torch.ones_like(angle), angle
    )
    return torch.cat([turned.real, turned.imag], dim=-1)


@pytest.mark.parametrize("heads", [(3,), (3, 2), ()], ids=str)
@pytest.mark.parametrize("theta", [10_000.0, 500.0])
@pytest.mark.parametrize(
    "positions",
    [torch.arange(5), torch.tensor([[0, 1, 2, 3, 4], [7, 8, 9, 3, 0]]), torch.arange(5)[None] + 9],
    ids=["[T]", "[B, T]", "[1, T]"],
)
def test_equals_complex_rotation(heads, theta, positions):
    x = torch.randn(2, 5, *heads, DIM)
    cos, sin = rotary_embedding(positions, DIM, theta=theta)
    assert cos.dtype == sin.dtype == torch.float32
    assert cos.shape == sin.shape == (*positions.shape, DIM)
    actual = apply_rotary(x, cos, sin)
    # An angle of at most 13 is off by 3 of its roundings; then two products and a sum.
    assert_equal_to_rounding(
        actual, rotated_by_hand(x, positions, theta), steps=3 * 13 + 4,
        magnitude=2 * float(x.abs().max()),
    )  # fmt: skip


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
def test_16_bits_round_only_the_result(dtype):
    x = torch.randn(1, 5, 2, DIM).to(dtype)
    tables = rotary_embedding(torch.arange(5), DIM)
    actual = apply_rotary(x, *tables)
    assert actual.dtype == dtype
    assert torch.equal(actual, apply_rotary(x.float(), *tables).to(dtype))
