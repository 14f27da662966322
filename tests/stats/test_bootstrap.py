"""Bootstrap over clusters and within groups: against enumeration, theory, and coverage."""

import itertools

import numpy as np
import pytest
from scipy.stats import bootstrap

from diffattn.errors import ConfigError
from diffattn.stats.bootstrap import (
    bootstrap_mean,
    bootstrap_mean_of_means,
    bootstrap_ratio,
    cluster_sums,
)


def enumerated(sums, sizes, level=0.95):
    """Quantiles over all n^n resamples."""
    sums, sizes = np.array(sums, float), np.array(sizes, float)
    draws = np.array(list(itertools.product(range(len(sums)), repeat=len(sums))))
    ratios = sums[draws].sum(1) / sizes[draws].sum(1)
    return np.quantile(ratios, [(1 - level) / 2, (1 + level) / 2])


def test_ends_equal_those_of_all_resamples():
    values = [0.0, 1.0, 4.0, 9.0, 16.0]
    interval = bootstrap_mean(values, level=0.8, repeats=50_000)
    low, high = enumerated(values, np.ones(5), 0.8)
    # The resampled mean moves by steps of 1/5: with many draws the ends are the enumerated ones.
    assert (interval.low, interval.high) == pytest.approx((low, high), abs=0.21)
    assert (interval.mean, interval.n) == (6.0, 5)


def test_ends_equal_those_of_scipy():
    """Clusters are its paired samples of sums and sizes; groups are its unpaired samples."""
    generator = np.random.default_rng(0)
    for n in (2, 7, 60):
        totals, weights = generator.normal(size=n), generator.uniform(0.5, 3, size=n)
        groups = [generator.normal(size=size) for size in (n, 3, 11)]
        intervals = bootstrap_ratio(totals, weights), bootstrap_mean_of_means(groups)
        expected = (
            scipy_ends((totals, weights), lambda t, w, axis: t.sum(axis) / w.sum(axis), True),
            scipy_ends(groups, lambda *x, axis: sum(group.mean(axis) for group in x) / 3, False),
        )
        for interval, ends in zip(intervals, expected, strict=True):
            # Sums in another order: relative to the values, which are of size 1.
            assert (interval.low, interval.high) == pytest.approx(ends, abs=1e-13)


def scipy_ends(samples, statistic, paired):
    ends = bootstrap(
        samples, statistic, paired=paired, vectorized=True, method="percentile",
        n_resamples=2_000, random_state=np.random.default_rng(0),
    )  # fmt: skip
    return ends.confidence_interval.low, ends.confidence_interval.high


def test_ratios_equal_those_of_all_resamples():
    totals, weights = [1.0, 8.0, 3.0, 20.0], [1.0, 4.0, 3.0, 5.0]
    ratio = bootstrap_ratio(totals, weights, level=0.8, repeats=50_000)
    assert ratio.mean == pytest.approx(32 / 13)
    assert (ratio.low, ratio.high) == pytest.approx(enumerated(totals, weights, 0.8), abs=0.05)


def test_clusters_come_and_go_together():
    values = np.repeat(np.arange(8.0), 50)
    clusters = [str(int(v)) for v in values]
    alone, whole = bootstrap_mean(np.arange(8.0)), bootstrap_mean(values, clusters)
    assert (whole.low, whole.high, whole.n) == (alone.low, alone.high, 8)
    alone = bootstrap_mean(values)
    assert alone.high - alone.low < (whole.high - whole.low) / 5
    sums, sizes = cluster_sums(values, clusters)
    assert list(sums) == [50.0 * i for i in range(8)]
    assert list(sizes) == [50.0] * 8


def test_equal_weights_are_the_mean():
    values = np.random.default_rng(1).normal(size=30)
    clusters = [str(i // 3) for i in range(30)]
    mean = bootstrap_mean(values, clusters)
    ratio = bootstrap_ratio(values, np.ones(30), clusters)
    assert (mean.low, mean.high) == (ratio.low, ratio.high)


def test_clusters_without_weight_say_nothing():
    with_none = bootstrap_ratio([1.0, 2.0, 0.0, 5.0], [1.0, 3.0, 0.0, 2.0])
    assert with_none == bootstrap_ratio([1.0, 2.0, 5.0], [1.0, 3.0, 2.0])


def test_coverage():
    generator = np.random.default_rng(0)
    hits = {"mean": 0, "ratio": 0}
    repeats, n = 300, 60
    for _ in range(repeats):
        interval = bootstrap_mean(generator.normal(size=n), repeats=400)
        hits["mean"] += interval.low <= 0 <= interval.high
        weights = generator.integers(1, 20, size=n).astype(float)
        totals = 2 * weights + generator.normal(size=n) * weights
        interval = bootstrap_ratio(totals, weights, repeats=400)
        hits["ratio"] += interval.low <= 2 <= interval.high
    # 95 % of 300 is 285, standard error 3.8; percentile intervals of 60 fall short by 1 to 2 %.
    assert 265 <= hits["mean"] <= 297
    assert 262 <= hits["ratio"] <= 297


def test_one_cluster_has_no_interval():
    assert bootstrap_mean([1.0, 3.0], ["a", "a"]).low is None
    assert bootstrap_ratio([1.0, 3.0], [1.0, 2.0], ["a", "a"]).high is None


@pytest.mark.parametrize(
    ("arguments", "options", "message"),
    [
        (([],), {}, "one or more finite"),
        (([1.0, np.inf],), {}, "one or more finite"),
        (([1.0], ["a", "b"]), {}, "one per value"),
        (([1.0],), {"level": 1.0}, "level must be"),
        (([1.0],), {"repeats": 0}, "repeats 1 or more"),
    ],
)
def test_bad_means_are_refused(arguments, options, message):
    with pytest.raises(ConfigError, match=message):
        bootstrap_mean(*arguments, **options)


@pytest.mark.parametrize(
    ("totals", "weights", "message"),
    [
        ([1.0, 2.0], [1.0], "one finite number"),
        ([1.0], [-1.0], "0 or more"),
        ([0.0], [0.0], "not all 0"),
        ([1.0, 1.0], [0.0, 1.0], "total 0"),
    ],
)
def test_bad_ratios_are_refused(totals, weights, message):
    with pytest.raises(ConfigError, match=message):
        bootstrap_ratio(totals, weights)


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
