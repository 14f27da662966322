"""Fisher's exact test against published values and brute force."""

import itertools

import pytest

from diffattn.errors import ConfigError
from diffattn.stats.proportions import fisher_exact


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
        fisher_exact(0, 1, successes, trials)
