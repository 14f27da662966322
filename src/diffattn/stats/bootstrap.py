"""Percentile bootstrap over clusters of items, and within fixed groups.

The same draws and ends as scipy.stats.bootstrap (the test compares them), which takes two to three
times as long for tens of clusters: it also computes a standard error.
"""

from collections.abc import Sequence

import numpy as np

from diffattn.errors import ConfigError
from diffattn.stats.intervals import Interval


def bootstrap_mean(
    values: Sequence[float] | np.ndarray,
    clusters: Sequence[str] | None = None,
    *,
    level: float = 0.95,
    repeats: int = 2_000,
    seed: int = 0,
) -> Interval:
    """Mean of all values and its percentile interval, clusters drawn with replacement.

    Items of one cluster (a document, a haystack) come or go together, so what they share does not
    make the interval too narrow.

    Source: B. Efron, Ann. Stat. 7 (1979), 1.

    Args:
        values: ``[n]``, finite, n >= 1.
        clusters: Name of each value's cluster. Default: every value is its own.
        level: Coverage, in (0, 1). Default 0.95.
        repeats: Resamples.
        seed: Of the resampling.

    Returns:
        The interval; its ends are ``None`` with one cluster. ``n`` counts clusters.

    Raises:
        ConfigError: ``values`` is empty or not finite, the lengths differ, or ``level`` or
            ``repeats`` is out of range.
    """
    x = np.asarray(values, dtype=np.float64)
    _require("bootstrap_mean", x, clusters, level, repeats)
    sums, sizes = cluster_sums(x, clusters)
    return _percentile(float(x.mean()), sums, sizes, level, repeats, seed)


def bootstrap_ratio(
    totals: Sequence[float] | np.ndarray,
    weights: Sequence[float] | np.ndarray,
    clusters: Sequence[str] | None = None,
    *,
    level: float = 0.95,
    repeats: int = 2_000,
    seed: int = 0,
) -> Interval:
    r"""Weighted mean as a ratio of sums, :math:`\sum_i t_i / \sum_i w_i`, and its interval.

    For example the loss per token over items of unequal length: totals are summed losses,
    weights are tokens. Clusters without weight say nothing and are left out.

    Source: B. Efron, R. Tibshirani, An Introduction to the Bootstrap (1993), section 10.6.

    Args:
        totals: ``[n]``, finite, n >= 1; 0 where the weight is 0.
        weights: ``[n]``, finite, 0 or more, not all 0.
        clusters: Name of each item's cluster. Default: every item is its own.
        level: Coverage, in (0, 1). Default 0.95.
        repeats: Resamples.
        seed: Of the resampling.

    Returns:
        The interval; its ends are ``None`` with one cluster. ``n`` counts clusters.

    Raises:
        ConfigError: An argument is out of range, or the lengths differ.
    """
    t, w = np.asarray(totals, dtype=np.float64), np.asarray(weights, dtype=np.float64)
    _require("bootstrap_ratio", t, clusters, level, repeats)
    if w.shape != t.shape or not np.isfinite(w).all() or (w < 0).any() or w.sum() == 0:
        raise ConfigError(
            "bootstrap_ratio: weights must be one finite number of 0 or more per total, "
            f"not all 0, got {list(w.shape)} for {list(t.shape)}."
        )
    if (t[w == 0] != 0).any():
        raise ConfigError("bootstrap_ratio: an item of weight 0 must have total 0, got another.")
    sums, sizes = cluster_sums(t, clusters)[0], cluster_sums(w, clusters)[0]
    heavy = sizes > 0
    mean = float(t.sum() / w.sum())
    return _percentile(mean, sums[heavy], sizes[heavy], level, repeats, seed)


def cluster_sums(
    x: np.ndarray, clusters: Sequence[str] | None = None
) -> tuple[np.ndarray, np.ndarray]:
    """Sum and number of the values of each cluster, in order of first appearance."""
    if clusters is None:
        return x, np.ones_like(x)
    index: dict[str, int] = {}
    which = np.array([index.setdefault(name, len(index)) for name in clusters])
    return np.bincount(which, weights=x), np.bincount(which).astype(np.float64)


def bootstrap_mean_of_means(
    groups: Sequence[Sequence[float] | np.ndarray],
    *,
    level: float = 0.95,
    repeats: int = 2_000,
    seed: int = 0,
) -> Interval:
    """Mean of the groups' means and its percentile interval, values redrawn within each group.

    Groups are fixed, such as the tasks of a benchmark: only their items are a sample, so what
    differs between groups does not widen the interval.

    Source: B. Efron, Ann. Stat. 7 (1979), 1.

    Args:
        groups: One or more, each ``[n]`` of finite values, n >= 1.
        level: Coverage, in (0, 1). Default 0.95.
        repeats: Resamples.
        seed: Of the resampling.

    Returns:
        The interval; its ends are ``None`` if a group has one value only. ``n`` counts values.

    Raises:
        ConfigError: There is no group, one is empty or not finite, or ``level`` or ``repeats`` is
            out of range.
    """
    arrays = [np.asarray(group, dtype=np.float64) for group in groups]
    if not arrays or any(x.ndim != 1 or x.size == 0 or not np.isfinite(x).all() for x in arrays):
        raise ConfigError(
            "bootstrap_mean_of_means: groups must hold one or more finite numbers each, got others."
        )
    if not 0 < level < 1 or repeats < 1:
        raise ConfigError(
            "bootstrap_mean_of_means: level must be in (0, 1) and repeats 1 or more, "
            f"got {level}, {repeats}."
        )
    mean, n = float(np.mean([x.mean() for x in arrays])), sum(x.size for x in arrays)
    if min(x.size for x in arrays) == 1:
        return Interval(mean, None, None, level, n, "none: a group of one value")
    generator = np.random.default_rng(seed)
    means = np.zeros(repeats)
    for x in arrays:
        means += x[generator.integers(0, x.size, size=(repeats, x.size))].mean(1) / len(arrays)
    low, high = np.quantile(means, [(1 - level) / 2, (1 + level) / 2])
    return Interval(mean, float(low), float(high), level, n, "bootstrap within groups")


def _require(
    name: str, x: np.ndarray, clusters: Sequence[str] | None, level: float, repeats: int
) -> None:
    """Raise unless the arguments that all share are in range."""
    if x.ndim != 1 or x.size == 0 or not np.isfinite(x).all():
        raise ConfigError(f"{name}: values must be one or more finite numbers, got others.")
    if clusters is not None and len(clusters) != x.size:
        raise ConfigError(
            f"{name}: clusters must name one per value, got {len(clusters)} for {x.size}."
        )
    if not 0 < level < 1 or repeats < 1:
        raise ConfigError(
            f"{name}: level must be in (0, 1) and repeats 1 or more, got {level}, {repeats}."
        )


def _percentile(
    mean: float, sums: np.ndarray, sizes: np.ndarray, level: float, repeats: int, seed: int
) -> Interval:
    """Interval of the ratio of sums, clusters drawn with replacement."""
    n = len(sums)
    if n == 1:
        return Interval(mean, None, None, level, n, "none: one cluster")
    generator = np.random.default_rng(seed)
    block = max(1, 2**22 // n)  # flat memory for any number of clusters
    ratios = []
    for start in range(0, repeats, block):
        drawn = generator.integers(0, n, size=(min(block, repeats - start), n))
        ratios.append(sums[drawn].sum(1) / sizes[drawn].sum(1))
    low, high = np.quantile(np.concatenate(ratios), [(1 - level) / 2, (1 + level) / 2])
    return Interval(mean, float(low), float(high), level, n, "bootstrap over clusters")
