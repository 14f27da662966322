"""Sums of attention over spans, and their two normalisations, by hand."""

import pytest
import torch

from diffattn.errors import ConfigError
from diffattn.probes.attention_rows import LayerRows
from diffattn.probes.segments import segment_shares, segment_sums

MAP_1 = torch.tensor([[0.5, 0.25, 0.25, 0.0], [0.125, 0.125, 0.25, 0.5]])  # [H, S]
MAP_2 = torch.tensor([[0.25, 0.5, 0.0, 0.25], [0.25, 0.25, 0.25, 0.25]])
SPANS = [(0, 1), (1, 3), (3, 4), (3, 3), (0, 2)]


def layer(lam):
    """Two heads; a first row of zeros that must not be read."""
    maps = torch.stack([MAP_1, MAP_2], dim=1)[:, :, None]
    maps = torch.cat([torch.zeros_like(maps), maps], dim=2)
    return LayerRows(maps=maps, signed=maps[:, 0] - lam * maps[:, 1])


def test_sums():
    sums = segment_sums([layer(0.5), layer(1.0)], SPANS)
    assert {name: tuple(x.shape) for name, x in sums.items()} == dict.fromkeys(
        ["signed", "clipped", "absolute", "map_1", "map_2"], (2, 2, 5)
    )
    assert sums["map_1"][1, 0].tolist() == [0.5, 0.5, 0.0, 0.0, 0.75]
    assert sums["map_2"][0, 1].tolist() == [0.25, 0.5, 0.25, 0.0, 0.5]
    # λ = 1/2, head 0: 0.375, 0, 0.25, -0.125
    assert sums["signed"][0, 0].tolist() == [0.375, 0.25, -0.125, 0.0, 0.375]
    assert sums["clipped"][0, 0].tolist() == [0.375, 0.25, 0.0, 0.0, 0.375]
    assert sums["absolute"][0, 0].tolist() == [0.375, 0.25, 0.125, 0.0, 0.375]
    softmax = LayerRows(maps=MAP_1[:, None, None], signed=MAP_1[:, None])
    assert "map_2" not in segment_sums([softmax], SPANS)
    first = segment_sums([layer(0.5)], SPANS, row=0)
    assert not first["absolute"].any()


def test_shares():
    sums = torch.tensor([[[1.0, 3.0, 2.0]], [[1.0, 0.0, 1.0]]])
    shares = segment_shares(sums, 2)  # the third span overlaps the others
    assert shares["global"] == pytest.approx([0.4, 0.6, 0.6])
    assert shares["row"] == pytest.approx([0.625, 0.375, 0.75])


@pytest.mark.parametrize("sums", [[[[1.0, -1.0]]], [[[1.0, 0.0]], [[-1.0, 0.0]]]])
def test_nothing_to_divide_by(sums):
    with pytest.raises(ConfigError, match="must not sum to 0"):
        segment_shares(torch.tensor(sums), 2)
