"""Wilson's interval and Fisher's test against published values and brute force."""

import itertools
import math

import pytest

from diffattn.errors import ConfigError
from diffattn.stats.proportions import fisher_exact, wilson_interval

# R. G. Newcombe, Stat. Med. 17 (1998), table I, method 3; to four decimals.
TABLE = [
    (81, 263, 0.2553, 0.3662),
    (15, 148, 0.0624, 0.1605),
    (0, 20, 0.0000, 0.1611),
    (1, 29, 0.0061, 0.1718),
]


@pytest.mark.parametrize(("successes", "trials", "low", "high"), TABLE)
def test_wilson_equals_published_table(successes, trials, low, high):
    interval = wilson_interval(successes, trials)
    assert interval.mean == successes / trials
    assert (interval.low, interval.high) == (
        pytest.approx(low, abs=5e-5),
        pytest.approx(high, abs=5e-5),
    )


@pytest.mark.parametrize("trials", [1, 2, 3, 8])
def test_wilson_ends_solve_its_equation(trials):
    """At an end p the score |share - p| is z standard errors of p."""
    for successes in range(trials + 1):
        interval = wilson_interval(successes, trials)
        mirrored = wilson_interval(trials - successes, trials)
        assert interval.low == pytest.approx(1 - mirrored.high, abs=1e-12)
        assert 0 <= interval.low <= interval.mean <= interval.high <= 1
        for p in {interval.low, interval.high} - {0.0, 1.0}:
            error = math.sqrt(p * (1 - p) / trials)
            assert abs(interval.mean - p) / error == pytest.approx(1.959964, abs=1e-6)


def test_fisher_on_the_lady_tasting_tea():
    """Of 70 tables, 1 + 16 on either side are at most as probable as three of four right."""
    assert fisher_exact(3, 4, 1, 4) == pytest.approx(34 / 70)
    assert fisher_exact(4, 4, 0, 4) == pytest.approx(2 / 70)
    assert fisher_exact(3, 3, 0, 3) == pytest.approx(0.1)
    assert fisher_exact(0, 3, 0, 3) == 1


def test_fisher_equals_a_permutation_test():
    """All ways to give the same outcomes to the two groups, counted one by one."""
    for solved, other in itertools.product(range(4), range(6)):
        outcomes = [1] * (solved + other) + [0] * (8 - solved - other)
        counts = [sum(chosen) for chosen in itertools.combinations(outcomes, 3)]
        as_rare = [k for k in set(counts) if counts.count(k) <= counts.count(solved)]
        expected = sum(counts.count(k) for k in as_rare) / len(counts)
        assert fisher_exact(solved, 3, other, 5) == pytest.approx(expected)
        assert fisher_exact(other, 5, solved, 3) == pytest.approx(expected)


@pytest.mark.parametrize(("successes", "trials"), [(1, 0), (-1, 3), (4, 3)])
def test_counts_that_are_none(successes, trials):
    message = f"successes must be from 0 to trials, and trials 1 or more, got {successes}"
    with pytest.raises(ConfigError, match=message):
        wilson_interval(successes, trials)
    with pytest.raises(ConfigError, match=message):
        fisher_exact(0, 1, successes, trials)
