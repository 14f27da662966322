"""Means over items that come in clusters, with Student's t over the clusters."""

import math
from collections.abc import Sequence

import numpy as np

from diffattn.errors import ConfigError
from diffattn.lab.stats.intervals import LEVEL, Interval, t_quantile


def cluster_mean(
    values: Sequence[float] | np.ndarray, clusters: Sequence[str] | None = None
) -> Interval:
    """Mean of all values and its interval: :func:`cluster_ratio` with every weight 1."""
    return cluster_ratio(values, np.ones(np.shape(values)), clusters)


def cluster_ratio(
    totals: Sequence[float] | np.ndarray,
    weights: Sequence[float] | np.ndarray,
    clusters: Sequence[str] | None = None,
) -> Interval:
    r"""Weighted mean as a ratio of sums, :math:`r = \sum_i t_i / \sum_i w_i`, and its interval.

    For example the loss per token over items of unequal length: totals are summed losses,
    weights are numbers of tokens. Clusters of weight 0 are left out.

    .. math:: r \pm t_{(1 + \text{level}) / 2,\; G - 1}
              \sqrt{\tfrac{G - 1}{G} \sum_{g=1}^G (r_{-g} - r)^2}

    over G clusters, :math:`r_{-g}` the ratio without cluster g. With equal weights and one value
    per cluster it is Student's interval. For about normal values it covers well from two clusters
    on, where a percentile bootstrap covers 75 to 89 % (``docs/records/coverage.md``).

    Source: J. W. Tukey, Ann. Math. Stat. 29 (1958), 614; R. M. Bell, D. F. McCaffrey, Surv.
    Methodol. 28 (2002), 169 (few clusters).

    Args:
        totals: ``[n]``, finite, n >= 1; 0 where the weight is 0.
        weights: ``[n]``, finite, 0 or more, not all 0.
        clusters: Name of each item's cluster, counted by ``n``. Default: every item is a cluster.

    Raises:
        ConfigError: There is no total, or one is not finite.
    """
    t, w = np.asarray(totals, dtype=np.float64), np.asarray(weights, dtype=np.float64)
    if t.ndim != 1 or t.size == 0 or not np.isfinite(t).all():
        raise ConfigError("cluster_ratio: totals must be one or more finite numbers, got others.")
    assert clusters is None or len(clusters) == t.size, "every value has a cluster"
    assert not t[w == 0].any(), "an item without weight adds nothing"
    sums, sizes = cluster_sums(t, clusters)[0], cluster_sums(w, clusters)[0]
    sums, sizes = sums[sizes > 0], sizes[sizes > 0]
    mean, n = float(t.sum() / w.sum()), len(sums)
    if n == 1:
        return Interval(mean, None, None, LEVEL, n, "none: one cluster")
    with np.errstate(over="ignore"):  # a spread above the largest float: infinite ends
        half = t_quantile((1 + LEVEL) / 2, n - 1) * math.sqrt(jackknife_variance(sums, sizes))
    method = "Student t over clusters (jackknife)"
    return Interval(mean, mean - half, mean + half, LEVEL, n, method)


def cluster_sums(
    x: np.ndarray, clusters: Sequence[str] | None = None
) -> tuple[np.ndarray, np.ndarray]:
    """Sum and number of the values of each cluster, in order of first appearance."""
    if clusters is None:
        return x, np.ones_like(x)
    index: dict[str, int] = {}
    which = np.array([index.setdefault(name, len(index)) for name in clusters])
    return np.bincount(which, weights=x), np.bincount(which).astype(np.float64)


def jackknife_variance(sums: np.ndarray, sizes: np.ndarray) -> float:
    """Jackknife variance of Σ sums / Σ sizes, over two or more clusters of positive size."""
    n, total, size = len(sums), sums.sum(), sizes.sum()
    without = (total - sums) / (size - sizes)
    return float((n - 1) / n * ((without - total / size) ** 2).sum())
