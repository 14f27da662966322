"""The log-rank test against a published example and against what it must do."""

import itertools
import math

import numpy as np
import pytest

from diffattn.lab.stats.survival import log_rank

# Weeks to relapse of 42 patients with leukaemia (Freireich et al., Blood 21, 1963), but with all
# censored ones watched to the end.
PLACEBO = [1, 1, 2, 2, 3, 4, 4, 5, 5, 8, 8, 8, 8, 11, 11, 12, 12, 15, 17, 22, 23]


def by_hand(steps, other):
    """The statistic, event by event, from its definition in fractions of the group at risk."""
    times = sorted({t for t in (*steps, *other) if t is not None})
    observed = expected = variance = 0.0
    for t in times:
        n_a = sum(x is None or x >= t for x in steps)
        n_b = sum(x is None or x >= t for x in other)
        d_a, d_b = steps.count(t), other.count(t)
        n, d = n_a + n_b, d_a + d_b
        observed, expected = observed + d_a, expected + d * n_a / n
        variance += d * n_a * n_b * (n - d) / (n * n * (n - 1)) if n > 1 else 0
    return (observed - expected) ** 2 / variance


def test_many_runs_follow_the_chi_square_distribution():
    treated = [6, 6, 6, 7, 10, 13, 16, 22, 23, *[None] * 12]
    expected = math.erfc(math.sqrt(by_hand(treated, PLACEBO) / 2))
    assert log_rank(treated, PLACEBO, 35) == pytest.approx(expected, rel=1e-12)
    assert expected < 1e-3


def test_few_runs_are_split_in_every_way():
    """Three early against three late runs: the most extreme 2 of 20 splits."""
    assert log_rank([1, 2, 3], [4, 5, 6], 10) == pytest.approx(0.1)
    assert log_rank([1, 2, 3], [None] * 3, 10) == pytest.approx(0.1)
    assert log_rank([1], [2], 10) == 1
    assert log_rank([None, None], [None], 10) == 1
    assert log_rank([5, 5], [5, 5], 10) == 1


def test_every_split_has_the_statistic_of_its_definition():
    times = [3, 1, None, 3, 5, 2, None]
    for size in (1, 3, 5):
        splits = list(itertools.combinations(range(7), size))
        expected = [
            by_hand([times[i] for i in split], [times[i] for i in set(range(7)) - {*split}])
            for split in splits
        ]
        p = np.mean(np.array(expected) >= expected[0] * (1 - 1e-9))
        assert log_rank(times[:size], times[size:], 6) == p


def test_two_groups_of_twelve_are_split_in_every_way():
    """The committed recall study's V2 against softmax; 2.7 million splits, told by their ties."""
    v2 = [400, 425, 300, 425, 450, 450, 350, 450, 375, 325, 400, 325]
    softmax = [325, 350, 375, 325, 325, 325, 400, 375, 375, 325, 350, 350]
    # Of the chi-square distribution it would be 0.0140.
    assert log_rank(softmax, v2, 3_000) == pytest.approx(0.018057, abs=1e-6)


def test_ties_show_no_lead():
    other = [325, 350, 350, 375, 400, 325, 350, 350, 375, 400, 350, 325]
    assert log_rank(other, other, 3_000) == 1
    assert log_rank([5] * 20, [5] * 20, 10) == 1
    assert log_rank([None] * 20, [None] * 20, 10) == 1
