"""Means over clusters with Student's t: against Student's own interval, an enumeration, theory."""

import numpy as np
import pytest

from diffattn.errors import ConfigError
from diffattn.lab.stats.intervals import cluster_mean, cluster_ratio, mean_interval


def test_single_values_and_equal_clusters_give_students_interval():
    values = np.random.default_rng(0).normal(size=7)
    student, alone = mean_interval(values), cluster_mean(values)
    repeated = cluster_mean(np.repeat(values, 3), [str(i // 3) for i in range(21)])
    for interval in (alone, repeated):
        assert (interval.low, interval.high) == pytest.approx((student.low, student.high))
        assert interval.n == 7


def test_clusters_of_unequal_size_are_left_out_one_by_one():
    totals, weights = [3.0, 1.0, 8.0, 2.0], [2.0, 1.0, 3.0, 4.0]
    clusters = ["a", "a", "b", "c"]
    ratios = [10 / 7, 6 / 7, 12 / 6]  # without a, b and c
    variance = 2 / 3 * sum((ratio - 1.4) ** 2 for ratio in ratios)
    half = 4.302652729911275 * variance**0.5  # t of 2 degrees of freedom at 97.5 %
    interval = cluster_ratio(totals, weights, clusters)
    assert interval.mean == pytest.approx(1.4)
    assert (interval.low, interval.high) == pytest.approx((1.4 - half, 1.4 + half))


def test_clusters_without_weight_say_nothing():
    with_none = cluster_ratio([1.0, 2.0, 0.0, 5.0], [1.0, 3.0, 0.0, 2.0])
    assert with_none == cluster_ratio([1.0, 2.0, 5.0], [1.0, 3.0, 2.0])


def test_one_cluster_has_no_interval():
    assert cluster_mean([1.0, 3.0], ["a", "a"]).low is None
    assert cluster_ratio([1.0, 3.0], [1.0, 2.0], ["a", "a"]).high is None


@pytest.mark.parametrize("values", [[], [1.0, np.inf]])
def test_bad_means_are_refused(values):
    with pytest.raises(ConfigError, match="one or more finite"):
        cluster_mean(values)
