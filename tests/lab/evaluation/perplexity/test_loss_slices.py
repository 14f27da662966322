"""Losses of one sequence summed over bins of its tokens."""

import numpy as np
import pytest

from diffattn.lab.evaluation.perplexity.ar_hits import Slices, slice_losses


def test_bins_part_the_tokens():
    losses = np.arange(1.0, 10.0)
    slices = Slices(losses)
    sizes = np.array([0, 1, 2, 3, 4, 7, 8, 15, 16])
    slices.add_by_size("size", sizes, np.ones(9, bool))
    assert slices.sums["size"] == {
        "0": [1, 1.0], "1": [1, 2.0], "2": [2, 7.0], "4": [2, 11.0], "8": [2, 15.0], "16": [1, 9.0]
    }  # fmt: skip
    table = slice_losses([{"tokens": 9, "slices": slices.sums}], "size")
    assert [(one["from"], one["to"]) for one in table[:3]] == [(0, 0), (1, 1), (2, 3)]
    assert sum(one["nll"] * one["share"] for one in table) == pytest.approx(losses.mean())
