"""RMSNorm per head."""

import pytest
import torch
from torch.autograd import gradcheck

from diffattn.ops.inputs.formulas import head_norm

SHAPE = (2, 3, 4, 8)


def by_hand(x, weight=None, eps=1e-5, factor=1.0):
    x = x.double()
    mean_square = sum(x[..., c] ** 2 for c in range(x.shape[-1])) / x.shape[-1]
    normed = x / (mean_square + eps)[..., None].sqrt()
    return factor * normed * (1.0 if weight is None else weight.double())


@pytest.mark.parametrize("affine", [False, True])
@pytest.mark.parametrize("eps", [1e-5, 0.5])
@pytest.mark.parametrize("factor", [1.0, 0.2])
@pytest.mark.parametrize(
    "dtype", [torch.float64, torch.float32, torch.bfloat16, torch.float16], ids=str
)
def test_equals_the_formula(affine, eps, factor, dtype, device):
    x = torch.randn(SHAPE, device=device).to(dtype)
    weight = (1 + torch.rand(8, device=device)).to(dtype) if affine else None
    actual = head_norm(x, weight, eps=eps, factor=factor)
    expected = by_hand(x, weight, eps, factor)
    assert actual.dtype == dtype
    # 8 squares, their sum, root, quotient, weight, factor; 16 bits add half a unit at the end.
    wide = dtype if dtype in (torch.float32, torch.float64) else torch.float32
    relative = 14 * torch.finfo(wide).eps + (torch.finfo(dtype).eps / 2 if wide != dtype else 0)
    smallest = torch.finfo(dtype).tiny * torch.finfo(dtype).eps
    tolerance = relative * expected.abs() + smallest
    assert ((actual.double() - expected).abs() <= tolerance).all()


def test_zero_stays_zero_with_finite_gradient(device):
    x = torch.zeros(SHAPE, device=device, requires_grad=True)
    out = head_norm(x)
    assert (out == 0).all()
    out.sum().backward()
    assert x.grad.isfinite().all()


def test_autocast_changes_nothing(device):
    x, weight = torch.randn(SHAPE, device=device), torch.rand(8, device=device)
    expected = head_norm(x, weight)
    with torch.autocast(device.type, dtype=torch.bfloat16):
        assert torch.equal(head_norm(x, weight), expected)


def test_derivatives():
    x = torch.randn(1, 2, 2, 3, dtype=torch.float64, requires_grad=True)
    weight = torch.randn(3, dtype=torch.float64, requires_grad=True)
    assert gradcheck(lambda x, w: head_norm(x, w, eps=0.1, factor=0.3), (x, weight))
