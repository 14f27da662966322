"""Proportions and means of shares: intervals, and what sampling alone brings."""

import itertools
import math

import numpy as np
import pytest

from diffattn.errors import ConfigError
from diffattn.lab.stats.intervals import (
    expected_range,
    mean_of_shares,
    share_interval,
    wilson_interval,
)


@pytest.mark.parametrize(
    ("successes", "n", "low", "high"),
    # R. G. Newcombe, Stat. Med. 17 (1998), 857, Table I, method 3.
    [(81, 263, 0.2553, 0.3662), (0, 20, 0.0, 0.1611), (1, 29, 0.0061, 0.1718)],
)
def test_wilson_equals_published_values(successes, n, low, high):
    interval = wilson_interval(successes, n)
    assert (interval.low, interval.high) == pytest.approx((low, high), abs=5e-5)
    assert (interval.mean, interval.n, interval.method) == (successes / n, n, "Wilson")


@pytest.mark.parametrize(("p", "n", "draws"), [(0.5, 2, 2), (0.3, 4, 3), (0.9, 1, 4), (0.2, 3, 1)])
def test_expected_range_equals_enumeration(p, n, draws):
    law = [math.comb(n, k) * p**k * (1 - p) ** (n - k) for k in range(n + 1)]
    exact, square = 0.0, 0.0
    for counts in itertools.product(range(n + 1), repeat=draws):
        weight = math.prod(law[k] for k in counts)
        width = (max(counts) - min(counts)) / n
        exact, square = exact + weight * width, square + weight * width**2
    error = math.sqrt(max(0.0, square - exact**2) / 20_000)
    assert expected_range(p, n, draws) == pytest.approx(exact, abs=4 * error + 1e-12)


def test_shares_and_clusters():
    """The ends solve the score equation of the effective number of items, with Student's t."""
    values, names = [0, 1, 1, 0, 1, 1], ["a", "a", "b", "c", "c", "c"]
    interval = share_interval(values, names)
    p, without = 4 / 6, np.array([3 / 4, 3 / 5, 2 / 3])
    seen = 2 / 3 * ((without - p) ** 2).sum()
    variance = (3 * seen + p * (1 - p) / 6) / 4
    for end in (interval.low, interval.high):
        # t of 2 degrees of freedom at 97.5 %; the variance scales as that of a proportion.
        distance = 4.302652729911275 * math.sqrt(variance * end * (1 - end) / (p * (1 - p)))
        assert abs(end - p) == pytest.approx(distance, abs=1e-9)
    assert (interval.mean, interval.n) == (p, 3)
    assert share_interval([0, 1, 1], ["a", "a", "a"]).low is None
    assert share_interval([0.5, 1, 0]) == share_interval([0.5, 1, 0], ["a", "b", "c"])
    # Independent zeros and ones are counts.
    assert share_interval([0, 1, 1, 0, 1]) == wilson_interval(3, 5)
    assert share_interval([0, 1, 1], ["a", "b", "c"]) == wilson_interval(2, 3)


def test_groups_weigh_equally_and_their_differences_do_not_widen_the_interval():
    apart = mean_of_shares([[1.0] * 90, [0.0] * 90])
    mixed = mean_of_shares([[1.0] * 45 + [0.0] * 45] * 2)
    assert apart.mean == mixed.mean == 0.5
    assert apart.high - apart.low < (mixed.high - mixed.low) / 4
    assert mean_of_shares([[1.0] * 9, [0.0]]).mean == 0.5
    assert mean_of_shares([[1.0, 0.0, 1.0]]) == share_interval([1.0, 0.0, 1.0])


def test_a_mean_of_shares_by_hand():
    """The ends solve the score equation of the effective number of items, with Student's t."""
    interval = mean_of_shares([[0.5, 0.0], [1.0, 1.0, 0.25]])  # means 1/4 and 3/4
    # With one more value, 1 or 0 as often, the means are 1/3 and 11/16, of squares 1/4 and 41/64.
    first, second = 1 / 4 - 1 / 9, 41 / 64 - (11 / 16) ** 2
    variance = (first / 1 + second / 2) / 4
    for end in (interval.low, interval.high):
        # t of 5 - 2 degrees of freedom at 97.5 %; the variance scales as that of a proportion.
        distance = 3.182446305284263 * math.sqrt(variance * end * (1 - end) / (0.5 * 0.5))
        assert abs(end - 0.5) == pytest.approx(distance, abs=1e-9)
    assert (interval.mean, interval.n) == (0.5, 5)


@pytest.mark.parametrize("value", [0, 1])
def test_all_alike_still_has_a_width(value):
    pooled = mean_of_shares([[value], [value, value]])
    clustered = share_interval([value] * 6, ["a", "a", "b", "b", "c", "c"])
    assert pooled == clustered == wilson_interval(3 * value, 3)
    assert pooled.high - pooled.low > 0.4


@pytest.mark.parametrize("groups", [[[1.0], []], [[float("nan")]], [[1.5]]])
def test_groups_must_hold_shares(groups):
    with pytest.raises(ConfigError, match="one or more numbers from 0 to 1"):
        mean_of_shares(groups)


@pytest.mark.parametrize("values", [[], [1.5], [float("nan")]])
def test_values_that_are_no_shares_are_refused(values):
    with pytest.raises(ConfigError, match="from 0 to 1"):
        share_interval(values)
