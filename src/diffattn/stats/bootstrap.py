"""Percentile bootstrap over clusters of items."""

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
    if x.ndim != 1 or x.size == 0 or not np.isfinite(x).all():
        raise ConfigError("bootstrap_mean: values must be one or more finite numbers, got others.")
    if clusters is not None and len(clusters) != x.size:
        raise ConfigError(
            f"bootstrap_mean: clusters must name one per value, got {len(clusters)} for {x.size}."
        )
    if not 0 < level < 1 or repeats < 1:
        raise ConfigError(
            "bootstrap_mean: level must be in (0, 1) and repeats 1 or more, "
            f"got {level}, {repeats}."
        )
    sums, sizes = cluster_sums(x, clusters)
    mean, n = float(x.mean()), len(sums)
    if n == 1:
        return Interval(mean, None, None, level, n, "none: one cluster")
    drawn = np.random.default_rng(seed).integers(0, n, size=(repeats, n))
    means = sums[drawn].sum(1) / sizes[drawn].sum(1)
    low, high = np.quantile(means, [(1 - level) / 2, (1 + level) / 2])
    return Interval(mean, float(low), float(high), level, n, "bootstrap over clusters")


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
