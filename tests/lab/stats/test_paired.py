"""Paired differences, McNemar, sign flips and Holm: published values, enumeration, the null."""

import math

import numpy as np
import pytest

from diffattn.errors import ConfigError
from diffattn.lab.stats.intervals import mean_interval
from diffattn.lab.stats.paired import holm, mcnemar_test, paired_difference, paired_t_test


def test_difference_is_values_minus_baseline():
    difference = paired_difference([1.5, 2.25, 3.0], [1.0, 2.0, 3.0])
    assert difference == mean_interval([0.5, 0.25, 0.0])
    with pytest.raises(ConfigError, match="finite numbers"):
        paired_difference([1.0, math.inf], [1.0, 2.0])


@pytest.mark.parametrize(("wins", "losses", "p"), [(0, 0, 1.0), (5, 0, 0.0625), (3, 7, 0.34375)])
def test_mcnemar_equals_the_binomial_law(wins, losses, p):
    assert mcnemar_test(wins, losses) == p


@pytest.mark.parametrize("n", [2, 3, 5, 40])
def test_the_t_test_is_scipys_and_agrees_with_its_interval(n):
    from scipy.stats import ttest_1samp

    rng = np.random.default_rng(n)
    for shift in (0.0, 0.3, 3.0):
        x = rng.normal(shift, 1, n)
        p = paired_t_test(x)
        assert p == pytest.approx(ttest_1samp(x, 0).pvalue, rel=1e-9)
        interval = paired_difference(x, np.zeros(n))
        assert (interval.low <= 0 <= interval.high) == (p >= 0.05)


def test_the_t_test_where_there_is_no_spread():
    assert paired_t_test([0.3]) is None
    assert paired_t_test([0.0, 0.0, 0.0]) == 1.0
    assert paired_t_test([0.25, 0.25, 0.25]) == 2 / 2**3
    assert paired_t_test([-0.25] * 40) == 2 / 2**40


def test_it_rejects_what_the_step_down_procedure_rejects():
    """Its definition: in rising order, stop at the first p above α over the tests left."""
    rng = np.random.default_rng(0)
    for _ in range(200):
        p = rng.uniform(size=rng.integers(1, 7)) ** 3
        alpha = rng.uniform(0.01, 0.3)
        rejected = set()
        for left, i in zip(range(len(p), 0, -1), p.argsort(), strict=True):
            if p[i] > alpha / left:
                break
            rejected.add(int(i))
        assert {i for i, value in enumerate(holm(list(p))) if value <= alpha} == rejected


def test_adjusted_values():
    """By hand: 0.005 * 4, 0.01 * 3, then 0.03 * 2 = 0.06, which 0.04 * 1 may not undercut."""
    assert holm([0.01, 0.04, 0.03, 0.005]) == pytest.approx([0.03, 0.06, 0.06, 0.02])
    assert holm([]) == []
    assert holm([0.9, 0.8]) == [1.0, 1.0]
