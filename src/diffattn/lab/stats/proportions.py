"""Intervals of proportions and of mean shares, and the range of proportions by chance alone."""

import math
from collections.abc import Sequence

import numpy as np

from diffattn.errors import ConfigError
from diffattn.lab.stats.clusters import cluster_sums, jackknife_variance
from diffattn.lab.stats.intervals import LEVEL, Interval, t_quantile


def wilson_interval(successes: int, n: int, level: float = LEVEL) -> Interval:
    r"""Wilson's score interval of a proportion.

    .. math:: \frac{\hat p + z^2 / 2n \pm z \sqrt{\hat p (1 - \hat p) / n + z^2 / 4n^2}}
              {1 + z^2 / n}

    Source: E. B. Wilson, J. Am. Stat. Assoc. 22 (1927), 209.
    """
    from scipy.stats import binomtest

    ends = binomtest(successes, n).proportion_ci(level, "wilson")
    return Interval(successes / n, float(ends.low), float(ends.high), level, n, "Wilson")


def share_interval(
    values: Sequence[float] | np.ndarray, clusters: Sequence[str] | None = None
) -> Interval:
    r"""Mean of values from 0 to 1 and its interval.

    Independent zeros and ones get Wilson's interval of a proportion. Shares in between, or several
    values per cluster, get Wilson's interval with an effective number of independent items,

    .. math:: n_\text{eff} = \frac{\hat p (1 - \hat p)}{v}, \quad
              v = \frac{G \hat v + \hat p (1 - \hat p) / n}{G + 1},

    with Student's t at G - 1 degrees of freedom in place of z, for G clusters with n values in all.
    :math:`\hat v` is the jackknife variance over clusters. The variance of n independent items is
    averaged in, with the weight of one cluster: a few clusters near 0 or 1 have almost no spread.
    If every value is 0, or every value is 1, each cluster counts as one item.

    Source: E. B. Wilson, J. Am. Stat. Assoc. 22 (1927), 209; E. L. Korn, B. I. Graubard, Surv.
    Methodol. 24 (1998), 193 (effective sample size); the weight of one cluster is ours.

    Args:
        values: ``[n]``, from 0 to 1, n >= 1.
        clusters: Name of each value's cluster, counted by ``n``. Default: every value is a cluster.
            A single one has no interval, unless all its values are 0 or all are 1.
    """
    x = np.asarray(values, dtype=np.float64)
    if x.ndim != 1 or x.size == 0 or not ((x >= 0) & (x <= 1)).all():
        raise ConfigError("share_interval: values must be one or more from 0 to 1, got others.")
    assert clusters is None or len(clusters) == x.size, "every value has a cluster"
    num_clusters = x.size if clusters is None else len(set(clusters))
    alike = x.min() == x.max() and x[0] in (0.0, 1.0)
    if alike or (num_clusters == x.size and set(np.unique(x)) <= {0.0, 1.0}):
        successes = int(x[0]) * num_clusters if alike else int(x.sum())
        return wilson_interval(successes, num_clusters)
    p = float(x.mean())
    if num_clusters == 1:
        return Interval(p, None, None, LEVEL, 1, "none: one cluster")
    observed = jackknife_variance(*cluster_sums(x, clusters))
    variance = (num_clusters * observed + p * (1 - p) / x.size) / (num_clusters + 1)
    low, high = _effective_wilson(p, variance, num_clusters - 1)
    return Interval(p, low, high, LEVEL, num_clusters, "Wilson over clusters, effective n")


def mean_of_shares(groups: Sequence[Sequence[float] | np.ndarray]) -> Interval:
    r"""Mean of the groups' means and its interval, also near 0 and 1.

    Groups are fixed, such as the tasks of a benchmark, and only their items are a sample. So
    differences between groups do not widen the interval. It is Wilson's, with Student's t,
    :math:`n_\text{eff} = \bar p (1 - \bar p) / v` and
    :math:`v = \sum_k v_k / (\max(1, n_k - 1) K^2)`. Here v_k is the mean squared deviation of
    group k's values and one more value. That value is 1 with probability :math:`\bar p`, else 0.
    So a group of equal values has a spread too. If all values are 0, or all are 1, or a single
    group holds only zeros and ones, this is Wilson's interval of all items together.

    Source: as :func:`share_interval`; the value added per group is ours.

    Args:
        groups: One or more, each ``[n]`` of values from 0 to 1, n >= 1. ``n`` counts values.
    """
    arrays = [np.asarray(group, dtype=np.float64) for group in groups]
    if not arrays or any(
        x.ndim != 1 or x.size == 0 or not ((x >= 0) & (x <= 1)).all() for x in arrays
    ):
        raise ConfigError(
            "mean_of_shares: groups must hold one or more numbers from 0 to 1 each, got others."
        )
    p, n = float(np.mean([x.mean() for x in arrays])), sum(x.size for x in arrays)
    every = set(np.unique(np.concatenate(arrays)))
    if every in ({0.0}, {1.0}) or (len(arrays) == 1 and every == {0.0, 1.0}):
        return wilson_interval(round(p * n), n)
    variance = 0.0
    for x in arrays:
        mean = (x.sum() + p) / (x.size + 1)
        spread = (np.square(x).sum() + p) / (x.size + 1) - mean**2
        variance += spread / max(1, x.size - 1) / len(arrays) ** 2
    low, high = _effective_wilson(p, variance, max(1, n - len(arrays)))
    return Interval(p, low, high, LEVEL, n, "Wilson within groups, effective n")


def _effective_wilson(p: float, variance: float, df: int) -> tuple[float, float]:
    """Ends of Wilson's interval with p (1 - p) / variance items, with Student's t for z."""
    n, t2 = p * (1 - p) / variance, t_quantile((1 + LEVEL) / 2, df) ** 2
    centre = (p + t2 / (2 * n)) / (1 + t2 / n)
    half = math.sqrt(t2 * (p * (1 - p) / n + t2 / (4 * n * n))) / (1 + t2 / n)
    return max(0.0, centre - half), min(1.0, centre + half)


def expected_range(p: float, n: int, draws: int) -> float:
    """Mean of (best − worst) of ``draws`` proportions of ``n`` trials: the range by chance alone.

    ``p`` is the probability of success.
    """
    # The error of 20,000 simulated sets is about 0.004 / sqrt(n).
    counts = np.random.default_rng(0).binomial(n, p, size=(20_000, draws))
    return float(np.ptp(counts, axis=1).mean()) / n
