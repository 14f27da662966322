"""Means over fixed groups: coverage, weights, refusals."""

import numpy as np
import pytest

from diffattn.errors import ConfigError
from diffattn.stats.bootstrap import bootstrap_mean, bootstrap_mean_of_means


@pytest.mark.parametrize("grouped", [False, True])
def test_intervals_cover_at_their_level(grouped):
    generator = np.random.default_rng(0)
    trials, hits = 400, 0
    for _ in range(trials):
        groups = [generator.normal(mean, 1.0, size=40) for mean in (0.0, 5.0)]
        if grouped:
            interval, truth = bootstrap_mean_of_means(groups, repeats=400), 2.5
        else:
            interval, truth = bootstrap_mean(groups[0], repeats=400), 0.0
        hits += interval.low <= truth <= interval.high
    # 4 standard errors of the count, and the percentile interval's known lack of about 1 %.
    assert hits / trials > 0.95 - 0.01 - 4 * (0.95 * 0.05 / trials) ** 0.5


def test_groups_weigh_equally_and_their_differences_do_not_widen_the_interval():
    interval = bootstrap_mean_of_means([[1.0] * 90, [0.0] * 10, [0.5, 0.5]])
    assert (interval.mean, interval.low, interval.high) == (0.5, 0.5, 0.5)
    assert interval.n == 102
    assert bootstrap_mean_of_means([[1.0, 0.0], [1.0]]).low is None


@pytest.mark.parametrize("groups", [[], [[]], [[1.0], []], [[float("nan")]], [[[1.0]]]])
def test_groups_must_hold_finite_numbers(groups):
    with pytest.raises(ConfigError, match="groups must hold one or more finite numbers"):
        bootstrap_mean_of_means(groups)


@pytest.mark.parametrize("settings", [{"level": 1.0}, {"repeats": 0}])
def test_level_and_repeats_must_be_in_range(settings):
    with pytest.raises(ConfigError, match="level must be in"):
        bootstrap_mean_of_means([[1.0, 2.0]], **settings)
    with pytest.raises(ConfigError, match="level must be in"):
        bootstrap_mean([1.0, 2.0], **settings)
