"""Broken logits and maps are refused, with the weight at fault; suppressed tokens are not."""

import math

import pytest
import torch
from torch import nn

from diffattn.errors import DiffAttnError
from diffattn.probes.passes import require_finite_logits, require_finite_maps

NAN, INF = math.nan, math.inf


@pytest.fixture
def network():
    return nn.Sequential(nn.Linear(2, 2), nn.LayerNorm(2))


@pytest.mark.parametrize(
    ("row", "got"),
    [((0.0, NAN), "nan"), ((NAN, INF), "nan"), ((INF, 0.0), "inf"), ((-INF, -INF), "-inf")],
)
def test_a_row_that_says_nothing_is_refused(network, row, got):
    logits = torch.zeros(2, 3, 2)
    logits[1, 2] = torch.tensor(row)
    message = (
        f"tiny: logits must be finite, got {got} in 1 of 6 rows "
        r"\(all weights are finite; computed in float32\)."
    )
    with pytest.raises(DiffAttnError, match=message):
        require_finite_logits("tiny", logits, network)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
def test_a_suppressed_token_and_large_numbers_are_sound(network, dtype):
    logits = torch.full((4, 5), torch.finfo(dtype).max, dtype=dtype)
    logits[:, 1:] = -INF
    for sound in (logits, logits[:0]):
        require_finite_logits("tiny", sound, network)


def test_padding_does_not_count(network):
    logits = torch.zeros(2, 3, 2)
    logits[0, 2] = NAN
    used = torch.tensor([[True, True, False], [True, True, True]])
    require_finite_logits("tiny", logits, network, used=used)
    with pytest.raises(DiffAttnError, match="in 1 of 5 rows"):
        require_finite_logits("tiny", logits, network, used=used ^ ~used[:1] ^ ~used[1:])


@pytest.mark.parametrize("value", [NAN, INF, -INF])
def test_the_first_broken_weight_is_named(network, value):
    with torch.no_grad():
        network[1].bias[1] = value
    with pytest.raises(DiffAttnError, match=r"\(weight 1.bias holds NaN or infinity\)"):
        require_finite_logits("tiny", torch.full((1, 2), NAN), network)


@pytest.mark.parametrize("value", [NAN, INF, -INF])
def test_maps(network, value):
    maps = torch.full((2, 3, 4), 0.25)
    require_finite_maps("tiny", maps, network)
    maps[1, 2, 3] = value
    with pytest.raises(DiffAttnError, match="tiny: attention maps must be finite, got"):
        require_finite_maps("tiny", maps, network)
