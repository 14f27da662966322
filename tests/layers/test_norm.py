"""HeadNorm as a module."""

import pytest
import torch

from diffattn.errors import ConfigError
from diffattn.layers.norm import HeadNorm
from diffattn.ops.inputs.head_norm import head_norm


@pytest.mark.parametrize("affine", [True, False])
def test_equals_the_operator(affine):
    norm = HeadNorm(8, affine=affine, eps=0.1, factor=0.3)
    if affine:
        torch.nn.init.uniform_(norm.weight, 0.5, 2.0)
    x = torch.randn(2, 3, 4, 8)
    assert torch.equal(norm(x), head_norm(x, norm.weight, eps=0.1, factor=0.3))
    assert len(list(norm.parameters())) == int(affine)


def test_factor_is_a_constant_of_the_configuration():
    """Not a buffer: a checkpoint holds no copy of λ_init."""
    assert HeadNorm(8, affine=False, factor=0.3).state_dict() == {}


@pytest.mark.parametrize("eps", [0.0, -1e-5])
def test_eps_must_be_positive(eps):
    with pytest.raises(ConfigError, match=rf"^HeadNorm: eps must be above 0, got {eps}\.$"):
        HeadNorm(8, eps=eps)


def test_prints_its_settings():
    assert repr(HeadNorm(8, factor=0.8)) == "HeadNorm(eps=1e-05, factor=0.8000)"
