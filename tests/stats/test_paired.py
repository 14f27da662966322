"""Paired differences."""

import math

import pytest

from diffattn.errors import ConfigError
from diffattn.stats.intervals import mean_interval
from diffattn.stats.paired import paired_difference


def test_difference_is_values_minus_baseline():
    difference = paired_difference([1.5, 2.25, 3.0], [1.0, 2.0, 3.0])
    assert difference == mean_interval([0.5, 0.25, 0.0])
    assert difference.mean == 0.25


def test_what_a_pair_shares_does_not_widen_the_interval():
    paired = paired_difference([11.0, 22.0, 33.0], [10.0, 21.0, 32.0])
    assert (paired.low, paired.high) == (1.0, 1.0)
    assert mean_interval([11.0, 22.0, 33.0]).high > 40


def test_one_pair_has_no_interval():
    difference = paired_difference([2.0], [2.5])
    assert (difference.mean, difference.low, difference.high) == (-0.5, None, None)


@pytest.mark.parametrize(
    ("values", "baseline", "message"),
    [
        ([1.0, 2.0], [1.0], "one length"),
        ([1.0, 2.0], 1.0, "one length"),
        ([1.0, math.nan], [1.0, 1.0], "values must be finite"),
        ([1.0, math.inf], [1.0, math.inf], "values must be finite"),
        ([1.0, 1.0], [math.nan, 1.0], "baseline must be finite"),
        ([], [], "n >= 1"),
    ],
)
def test_bad_pairs_are_refused(values, baseline, message):
    with pytest.raises(ConfigError, match=message):
        paired_difference(values, baseline)
