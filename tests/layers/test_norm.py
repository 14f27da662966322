"""HeadNorm as a module."""

import pytest

from diffattn.errors import ConfigError
from diffattn.layers.norm import HeadNorm


def test_factor_is_a_constant_of_the_configuration():
    """Not a buffer: a checkpoint holds no copy of λ_init."""
    assert HeadNorm(8, affine=False, factor=0.3).state_dict() == {}


@pytest.mark.parametrize("eps", [0.0, -1e-5])
def test_eps_must_be_positive(eps):
    with pytest.raises(ConfigError, match=rf"^HeadNorm: eps must be above 0, got {eps}\.$"):
        HeadNorm(8, eps=eps)


def test_prints_its_settings():
    assert repr(HeadNorm(8, factor=0.8)) == "HeadNorm(eps=1e-05, factor=0.8000)"
