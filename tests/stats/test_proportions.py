"""Intervals of proportions, and what sampling alone brings."""

import itertools
import math

import numpy as np
import pytest

from diffattn.errors import ConfigError
from diffattn.stats.proportions import expected_range, normal_quantile, wilson_interval


@pytest.mark.parametrize(
    ("successes", "n", "low", "high"),
    # R. G. Newcombe, Stat. Med. 17 (1998), 857, Table I, method 3.
    [
        (81, 263, 0.2553, 0.3662),
        (15, 148, 0.0624, 0.1605),
        (0, 20, 0.0, 0.1611),
        (1, 29, 0.0061, 0.1718),
    ],
)
def test_wilson_equals_published_values(successes, n, low, high):
    found = wilson_interval(successes, n)
    assert (found.low, found.high) == pytest.approx((low, high), abs=5e-5)
    assert (found.mean, found.n, found.method) == (successes / n, n, "Wilson")


@pytest.mark.parametrize(("successes", "n"), [(0, 1), (1, 1), (7, 50), (25, 50), (50, 50)])
def test_the_ends_solve_the_score_equation(successes, n):
    """At its ends the proportion lies z standard errors, taken at the end, from the observed."""
    found = wilson_interval(successes, n, level=0.9)
    z = normal_quantile(0.95)
    for end in (found.low, found.high):
        distance = abs(end - successes / n)
        assert distance == pytest.approx(z * math.sqrt(end * (1 - end) / n), abs=1e-12)
    mirrored = wilson_interval(n - successes, n, level=0.9)
    assert (1 - mirrored.high, 1 - mirrored.low) == pytest.approx((found.low, found.high))


def test_coverage_by_enumeration():
    """Mean coverage over p is close to the level; the binomial law is summed, not simulated."""
    n = 50
    intervals = [wilson_interval(k, n) for k in range(n + 1)]
    coverages = []
    for p in np.linspace(0.02, 0.98, 97):
        law = [math.comb(n, k) * p**k * (1 - p) ** (n - k) for k in range(n + 1)]
        assert sum(law) == pytest.approx(1)
        coverages.append(
            sum(w for w, one in zip(law, intervals, strict=True) if one.low <= p <= one.high)
        )
    assert np.mean(coverages) == pytest.approx(0.95, abs=0.01)
    assert min(coverages) > 0.89


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


@pytest.mark.parametrize(
    ("p", "z"), [(0.5, 0.0), (0.975, 1.959963984540054), (0.01, -2.3263478740408408)]
)
def test_normal_quantile(p, z):
    assert normal_quantile(p) == pytest.approx(z, abs=1e-14)


def test_arguments_out_of_range_are_refused():
    for arguments in ((-1, 5), (6, 5), (0, 0)):
        with pytest.raises(ConfigError, match="successes must lie"):
            wilson_interval(*arguments)
    with pytest.raises(ConfigError, match="level must be"):
        wilson_interval(1, 2, level=1.0)
    for arguments in ((1.5, 5, 2), (0.5, 0, 2), (0.5, 5, 0)):
        with pytest.raises(ConfigError, match="p must lie"):
            expected_range(*arguments)
