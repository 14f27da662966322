"""Weights as bytes: within half a step, and small."""

import base64
import zlib

import numpy as np
import pytest

from diffattn.lab.report.viewer.values import packed, to_codes, to_weights
from lab.report.viewer.viewed_models import half_step, random_maps

GENERATOR = np.random.default_rng(0)
SPREADS = (0.01, 1.0, 8.0)


@pytest.mark.parametrize("row_scales", [True, False])
@pytest.mark.parametrize("spread", SPREADS)
def test_weights_come_back_within_half_a_step(row_scales, spread):
    maps = random_maps(GENERATOR, 2, 3, 40, 40, spread=spread)
    codes, scales, error = to_codes(maps, row_scales=row_scales)
    assert codes.shape == (2, 3, 40 * 41 // 2)
    weights = maps[..., *np.tril_indices(40)]
    off = np.abs(to_weights(codes, scales) - weights)
    assert (off <= half_step(codes, scales) + 1e-7).all()  # scales are float32
    assert error == off.max()
    assert off.max() > 0.2 * half_step(codes, scales)[weights > 0.01].min()  # no vacuous bound


def test_row_scales_are_finer_where_rows_are_even():
    maps = random_maps(GENERATOR, 64, 64, spread=0.01)
    rows = slice(64 * 63 // 2, None)  # the last one: 1/64 everywhere
    steps = [
        half_step(*to_codes(maps, row_scales=row_scales)[:2])[rows].max()
        for row_scales in (True, False)
    ]
    assert steps[0] < steps[1] / 7


def test_what_is_1_is_exact_and_what_is_0_stays_0():
    maps = np.array([[1.0, 0.0], [0.0, 1.0]])
    for row_scales in (True, False):
        codes, scales, error = to_codes(maps, row_scales=row_scales)
        assert codes.tolist() == [255, 0, 255]
        assert error == 0
        assert to_weights(codes, scales).tolist() == [1.0, 0.0, 1.0]
    # A rounding above 1 counts as 1.
    codes, _, error = to_codes(np.array([[1.0 + 1e-6]]), row_scales=False)
    assert codes.tolist() == [255]
    assert error == pytest.approx(1e-6, rel=1e-3)


def test_arrays_are_packed_in_order_and_little_endian():
    text = packed(np.array([1.5], ">f4"), np.array([7, 8], np.uint8), np.array([258], np.uint16))
    assert zlib.decompress(base64.b64decode(text)) == b"\x00\x00\xc0\x3f\x07\x08\x02\x01"
