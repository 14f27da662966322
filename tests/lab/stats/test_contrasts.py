"""Paired differences: published values, the definition, and that interval and test agree."""

import math

import numpy as np
import pytest
from scipy.optimize import minimize_scalar

from diffattn.errors import ConfigError
from diffattn.lab.stats.paired import (
    clustered_shares,
    mcnemar_test,
    paired_contrast,
    tango_interval,
)


def test_tango_equals_published_values():
    """M. W. Fagerland et al., Stat. Med. 33 (2014), 2850, Table VI: 1 and 7 of 21."""
    interval = tango_interval(1, 7, 21)
    assert (interval.low, interval.high) == pytest.approx((-0.517, -0.026), abs=5e-4)
    assert (interval.mean, interval.n, interval.method) == (-6 / 21, 21, "Tango")
    swapped = tango_interval(7, 1, 21)
    assert (-swapped.high, -swapped.low) == pytest.approx((interval.low, interval.high))


@pytest.mark.parametrize(("wins", "losses", "n"), [(8, 3, 30), (0, 4, 9), (5, 0, 5), (20, 1, 60)])
def test_the_ends_solve_the_score_equation(wins, losses, n):
    """The likeliest q under each end is found by search, not by the closed form."""
    interval = tango_interval(wins, losses, n)
    for end in (interval.low, interval.high):
        if abs(end) == 1:
            continue

        def loss(q, end=end):
            cells = ((wins, q + end), (losses, q), (n - wins - losses, 1 - 2 * q - end))
            return -sum(count * math.log(max(p, 1e-300)) for count, p in cells if count)

        bounds = (max(0.0, -end), (1 - end) / 2)
        q = minimize_scalar(loss, bounds=bounds, method="bounded", options={"xatol": 1e-12}).x
        z = (wins - losses - n * end) / math.sqrt(n * (2 * q + end * (1 - end)))
        assert abs(z) == pytest.approx(1.959964, abs=2e-4)


def pairs(wins, losses, ties):
    x = [1] * wins + [0] * losses + [1] * ties
    return x, [0] * wins + [1] * losses + [1] * ties


@pytest.mark.parametrize("n", [1, 3, 5, 6, 12, 25])
def test_zeros_and_ones_never_contradict_themselves(n):
    """Every table of n items: the interval leaves 0 out exactly where McNemar's test rejects."""
    for wins in range(n + 1):
        for losses in range(n + 1 - wins):
            contrast = paired_contrast(*pairs(wins, losses, n - wins - losses), shares=True)
            interval = contrast.interval
            assert contrast.p_value == mcnemar_test(wins, losses)
            assert interval.low <= interval.mean <= interval.high
            assert (contrast.p_value <= 0.05) == (not interval.low <= 0 <= interval.high)
            if n < 6:
                assert interval.low <= 0 <= interval.high


@pytest.mark.parametrize("kind", ["shares", "losses"])
@pytest.mark.parametrize("num_clusters", [2, 3, 5, 8, 30])
def test_clusters_never_contradict_themselves(kind, num_clusters):
    generator = np.random.default_rng(num_clusters)
    sides = set()
    for shift in np.linspace(0, 0.98, 40):
        clusters = [str(i) for i in range(num_clusters) for _ in range(generator.integers(1, 6))]
        x = generator.uniform(size=len(clusters)) * (1 - shift) + shift
        b = generator.uniform(size=len(clusters)) * (1 - shift)
        if kind == "losses":
            x, b = 0.3 * x + 0.4, 0.3 * b + 0.4  # all within 0 to 1, and losses still
        weights = generator.uniform(1, 3, size=len(clusters))
        contrast = paired_contrast(x, b, weights, clusters, shares=kind == "shares")
        interval = contrast.interval
        assert interval.mean == pytest.approx((weights * (x - b)).sum() / weights.sum())
        assert interval.low <= interval.mean <= interval.high
        outside = not interval.low <= 0 <= interval.high
        assert (contrast.p_value <= 0.05) == outside
        sides.add(outside)
    assert len(sides) == 2 or (kind == "shares" and num_clusters < 4)


def test_losses_below_one_are_tested_as_those_above():
    """A constant added to both sides of losses changes neither their interval nor their test."""
    generator = np.random.default_rng(0)
    b = generator.normal(0.9, 0.03, 50)
    x = b + generator.normal(-0.018, 0.006, 50)
    assert max(x.max(), b.max()) < 1
    low, high = paired_contrast(x, b, shares=False), paired_contrast(x + 1, b + 1, shares=False)
    assert low.p_value == pytest.approx(high.p_value, rel=1e-6)
    assert low.p_value < 1e-20
    assert (low.interval.low, low.interval.high) == pytest.approx(
        (high.interval.low, high.interval.high)
    )
    assert paired_contrast(x, b, shares=True).p_value > 0.05  # as shares, two pairs of 1 are added


def test_zeros_and_ones_of_unequal_weight_are_no_counts():
    """Wins of weight 3 and 1 and a loss of 2 among 8: not the 2 to 1 of 4 that McNemar counts."""
    contrast = paired_contrast([1, 1, 0, 1], [0, 0, 1, 1], [3, 1, 2, 2], shares=True)
    assert contrast.interval.mean == (3 + 1 - 2) / 8
    assert contrast.test == "Student t over clusters, adjusted"
    alike = paired_contrast([1, 1, 0, 1], [0, 0, 1, 1], [2, 2, 2, 2], shares=True)
    assert alike == paired_contrast([1, 1, 0, 1], [0, 0, 1, 1], shares=True)
    assert (alike.interval.mean, alike.test) == (1 / 4, "McNemar, exact")


def test_shares_in_clusters_by_hand():
    """With two degrees of freedom Student's t has the quantile 4.303; its test has
    p = 1 - t / sqrt(t^2 + 2)."""
    x, weights = np.array([1, 0, 0.5, -1, 0, 0]), np.array([1, 3, 2, 1, 1, 1])
    contrast = clustered_shares(x, weights, ["a", "a", "b", "c", "c", "c"])
    # Sums 1, 1, -1 of weights 4, 2, 3, so r = 1/9; residuals 5/9, 7/9, -12/9. A cluster weighs 3
    # and has 2 items, so u = 3 / sqrt(2).
    total = 9 + 2 * (3 / math.sqrt(2))
    error = math.sqrt(3 / 2 * (25 + 49 + 144) / 81 + 9 / 2) / total
    quantile = 4.302652729911275
    half, t = quantile * error, 1 / total / error
    results = contrast.interval
    assert (results.mean, results.n) == (pytest.approx(1 / 9), 3)
    assert 1 / total + half > 1  # beyond any difference of shares
    assert (results.low, results.high) == pytest.approx((1 / total - half, 1))
    assert contrast.p_value == pytest.approx(1 - t / math.sqrt(t * t + 2))
    # Where no cluster differs from another, u is a cluster, here of 2: sqrt(2^2) / (6 + 2 * 2).
    alike = clustered_shares(np.zeros(6), np.ones(6), [*"aabbcc"])
    assert alike.interval.high == -alike.interval.low == pytest.approx(quantile * 0.2)
    assert alike.p_value == 1


def test_nothing_differs_or_everything_alike():
    same = paired_contrast([0, 1, 1, 0], [0, 1, 1, 0], clusters=["a", "a", "b", "b"], shares=True)
    assert same.p_value == 1
    assert same.interval.low == -same.interval.high
    assert same.interval.high > 0.5  # two clusters that agree show little
    shifted = paired_contrast([5.0] * 8, [3.0] * 8, shares=False)
    assert (shifted.interval.mean, shifted.interval.low) == (2.0, None)
    assert shifted.p_value == pytest.approx(2 / 2**8)
    alone = paired_contrast([0.5, 1.0], [0.0, 0.0], clusters=["a", "a"], shares=True)
    assert (alone.p_value, alone.interval.low) == (None, None)


def test_scores_that_are_not_finite_are_refused():
    with pytest.raises(ConfigError, match="finite numbers"):
        paired_contrast([1.0], [float("nan")], shares=True)
