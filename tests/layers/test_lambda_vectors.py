"""The λ that layers start with; λ's vectors: a module of their own, never rounded."""

import copy

import pytest
import torch

from diffattn.layers.diff_attention import DiffAttention
from diffattn.layers.parts import LAMBDA_NAMES, LambdaVectors


@pytest.fixture
def layer():
    torch.manual_seed(0)
    return DiffAttention(24, 4, 8)


@pytest.mark.parametrize("is_float64", [False, True], ids=["from float32", "from float64"])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_a_conversion_to_16_bits_rounds_no_vector(layer, dtype, is_float64):
    """It ends float64: else λ and the norm behind it would be wider than all other weights."""
    before = copy.deepcopy(layer)
    (layer.double() if is_float64 else layer).to(dtype)
    assert layer.q_proj.weight.dtype == dtype
    for name in LAMBDA_NAMES:
        assert torch.equal(getattr(layer, name), getattr(before, name))
        assert getattr(layer, name).dtype == torch.float32
    assert torch.equal(layer.lam(), before.lam())
    out = layer(torch.randn(1, 3, 24, dtype=dtype))
    assert out.dtype == dtype
    out.float().sum().backward()
    assert layer.lambda_q1.grad.dtype == torch.float32


def test_a_conversion_to_16_bits_still_moves(layer):
    layer.to("meta", torch.bfloat16)
    assert {(x.device.type, x.dtype) for x in layer.lambda_bias.parameters()} == {
        ("meta", torch.float32)
    }
    layer.to_empty(device="cpu")
    assert layer.lambda_q1.device.type == "cpu"


def test_a_conversion_to_float64_widens(layer):
    before = layer.lambda_q1.detach().clone()
    assert layer.double().lam().dtype == torch.float64
    assert torch.equal(layer.lambda_q1, before.double())


def test_vectors_come_first_and_alone(layer):
    """Optimizers and gradient norms go by the order; sharding wants one dtype per module."""
    names = [name for name, _ in layer.named_parameters()]
    assert names[:4] == [f"lambda_bias.{name}" for name in LAMBDA_NAMES]
    assert isinstance(layer.lambda_bias, LambdaVectors)
    assert not list(layer.parameters(recurse=False))


def test_lambda_is_computed_by_the_module_that_holds_the_vectors(layer):
    """Else FSDP would not gather them: it acts when a module is called."""
    called = []
    layer.lambda_bias.register_forward_hook(lambda *_: called.append(1))
    layer(torch.randn(1, 3, 24))
    layer.lam()
    assert len(called) == 2
