"""bfloat16 in Triton's interpreter: products, rounding, arithmetic, and what only moves numbers."""

import numpy as np
import pytest
import torch

triton = pytest.importorskip("triton")
import triton.language as tl  # noqa: E402  after the skip

from diffattn.ops.triton import (  # noqa: E402
    configs,
    interpreter,
    launch,  # noqa: F401  whose import repairs
)

pytestmark = pytest.mark.skipif(
    not configs.interpreted(), reason="the interpreter is off: kernels are compiled for the GPU"
)


@triton.jit
def _products_kernel(p_x, p_y, p_out, SIZE: tl.constexpr):
    i = tl.arange(0, SIZE)[:, None] * SIZE + tl.arange(0, SIZE)[None, :]
    b_x, b_y = tl.load(p_x + i), tl.load(p_y + i)
    b_sum = tl.dot(b_x, tl.trans(b_y), tl.full([SIZE, SIZE], 0.5, tl.float32))
    tl.store(p_out + i, b_sum)


def numbers(*shape):
    return torch.randn(shape, generator=torch.Generator().manual_seed(0)).bfloat16()


def test_products_are_those_of_the_numbers():
    """Sums of 16 products of 16 bits are exact in float32 but for their last digits."""
    x, y = numbers(2, 16, 16)
    out = torch.empty(16, 16)
    _products_kernel[(1,)](x, y, out, SIZE=16)
    exact = x.double() @ y.double().T + 0.5
    bound = 16 * torch.finfo(torch.float32).eps * (x.double().abs() @ y.double().abs().T + 0.5)
    assert ((out - exact).abs() <= bound).all()


def test_casts_round_to_the_nearest_even():
    """Every upper half of 32 bits with lower halves below, at and above the tie."""
    upper = torch.arange(2**16, dtype=torch.int64)[:, None] << 16
    lower = torch.tensor([0, 1, 0x7FFF, 0x8000, 0x8001, 0xFFFF])
    bits = (upper + lower).flatten()
    x = torch.where(bits < 2**31, bits, bits - 2**32).int().view(torch.float32)
    got = torch.from_numpy(interpreter.to_bfloat16(x.numpy()).view(np.int16)).view(torch.bfloat16)
    assert torch.equal(got.isnan(), x.isnan())
    assert torch.equal(got[~x.isnan()], x.bfloat16()[~x.isnan()])
    again = interpreter.to_float32(got.view(torch.int16).numpy().view(np.uint16))
    assert torch.equal(torch.from_numpy(again)[~x.isnan()], got.float()[~x.isnan()])
