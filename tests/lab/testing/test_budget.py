"""One rule of judgement, and what rounding does to a model where it is measured."""

import math

import pytest
import torch
from torch import nn

from diffattn.lab.testing.assertions import compare, measured_errors, nudged


@pytest.mark.parametrize(("dtype", "sides"), [(torch.float32, 2), (torch.float64, 4)])
def test_twice_what_rounding_can_do(dtype, sides):
    """Of each side that is rounded: in float64 the exact value is rounded too."""
    exact = torch.tensor([1.0, -2.0], dtype=torch.float64)
    off = torch.tensor([0.125, 0.25], dtype=torch.float64)
    right = compare(exact.to(dtype) + sides * off.to(dtype), exact, off)
    assert right == (sides * 0.125, sides * 0.125, None)
    assert right.share == 1
    wrong = compare(exact.to(dtype) + sides * off.to(dtype) + 0.125, exact, off)
    assert wrong.problem == f"error {wrong.error:.3e}, budget {wrong.budget:.3e}"
    assert wrong.share > 1


def test_every_value_has_its_own_budget():
    """The largest value of a tensor pays for no error of a small one."""
    exact = torch.tensor([4.0, 0.01, 0.0], dtype=torch.float64)
    off = 1e-3 * exact
    assert compare(exact.float() + torch.tensor([1e-3, 0.0, 0.0]), exact, off).problem is None
    lost = compare(exact.float() + torch.tensor([0.0, 1e-3, 0.0]), exact, off)
    assert lost.problem is not None
    assert (lost.error, lost.budget) == pytest.approx((1e-3, 2e-5), rel=1e-3)
    assert compare(exact.float() + torch.tensor([0.0, 0.0, 1e-9]), exact, off).problem is not None
    assert compare(exact.float() + torch.tensor([0.0, 0.0, 1e-30]), exact, off).problem is None
    assert compare(torch.zeros(0), torch.zeros(0, dtype=torch.float64), 0.0) == (0.0, 0.0, None)


@pytest.mark.parametrize(
    ("actual", "off"),
    [
        ([1.0, math.nan], 1.0),
        ([1.0, math.nan], torch.ones(2)),
        ([1.0, math.inf], torch.ones(2)),
        ([1.0, 1.0], torch.tensor([0.5, math.nan])),
        ([1.0, 1.0], torch.tensor([0.5, math.inf])),
        ([1.0, 1.0], math.inf),
        ([1.0], 1.0),
    ],
)
def test_what_cannot_be_compared_fails(actual, off):
    """An infinite budget would let everything pass."""
    result = compare(torch.tensor(actual), torch.ones(2, dtype=torch.float64), off)
    assert result.problem is not None
    assert result.share == math.inf


@pytest.fixture
def layer():
    return nn.Linear(64, 32)


def results(x):
    return lambda layer: {"output": layer(x.to(layer.weight.dtype)).detach()}


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16, torch.float64])
def test_a_model_is_judged_by_nudged_runs(layer, dtype):
    """Rounding passes; a weight that is off by 32 units does not."""
    run, layer = results(torch.randn(16, 64).to(dtype)), layer.to(dtype)
    exact = run(nudged(layer, seed=0, ulps=0.0).double())
    off = measured_errors(run, layer, exact)
    assert compare(run(layer)["output"], exact["output"], off["output"]).problem is None
    with torch.no_grad():
        layer.weight.mul_(1 + 32 * torch.finfo(dtype).eps)
    assert compare(run(layer)["output"], exact["output"], off["output"]).problem is not None


def test_nudged_weights_are_off_by_a_unit_at_most(layer):
    before = layer.weight.clone()
    moved = nudged(layer, seed=3).weight
    eps = torch.finfo(torch.float32).eps
    assert torch.equal(layer.weight, before)
    assert 0.4 * eps < ((moved - before) / before).abs().max() < 1.51 * eps  # rounded again
    assert torch.equal(moved, nudged(layer, seed=3).weight)
    assert not torch.equal(moved, nudged(layer, seed=4).weight)


def test_a_run_that_is_no_number_is_no_budget(layer):
    run = results(torch.full((1, 64), torch.nan))
    off = measured_errors(run, layer, run(layer))
    assert math.isnan(off["output"])
