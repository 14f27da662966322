"""Paired differences between two models: an interval and a test that never contradict each other.

Both are about the mean difference over all items. Clusters are independent, items need not be.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from diffattn.errors import ConfigError
from diffattn.lab.stats.clusters import cluster_ratio, cluster_sums
from diffattn.lab.stats.intervals import LEVEL, Interval, t_quantile
from diffattn.lab.stats.paired import mcnemar_test, sign_flip_test

_T_TEST = "Student t over clusters"


@dataclass(frozen=True, slots=True)
class Contrast:
    """A mean difference with its interval, and the p-value of no difference.

    The p-value is at most ``1 - LEVEL`` exactly if the interval excludes 0.
    """

    interval: Interval
    p_value: float | None
    """Two-sided; ``None`` with one cluster."""
    test: str


def tango_interval(wins: int, losses: int, n: int) -> Interval:
    r"""Score interval of the difference of two paired proportions.

    It holds all Δ whose score statistic is at most z in size. There q is the probability of a
    loss that is most likely under Δ:

    .. math:: \frac{b - c - n\Delta}{\sqrt{n\,(2 q + \Delta (1 - \Delta))}},
              \quad 2 n q^2 + ((2 n - b + c) \Delta - b - c)\, q = c\, \Delta (1 - \Delta)

    Source: T. Tango, Stat. Med. 17 (1998), 891.

    Args:
        wins: b, number of items that only the first model has right. ``losses`` are c.
    """
    from scipy.special import ndtri

    mean, z = (wins - losses) / n, float(ndtri((1 + LEVEL) / 2))

    def excess(delta: float) -> float:
        """Squared score statistic less z², times a positive factor; 0 or less inside."""
        linear = (2 * n - wins + losses) * delta - wins - losses
        root = math.sqrt(max(0.0, linear**2 + 8 * n * losses * delta * (1 - delta)))
        # The form of the root that does not cancel digits.
        if linear <= 0:
            q = (root - linear) / (4 * n)
        else:
            q = 2 * losses * delta * (1 - delta) / (linear + root)
        return (wins - losses - n * delta) ** 2 - z * z * n * (2 * q + delta * (1 - delta))

    return Interval(mean, _bound(excess, mean, -1.0), _bound(excess, mean, 1.0), LEVEL, n, "Tango")


def _bound(excess: Callable[[float], float], inside: float, outside: float) -> float:
    """Bisect for the point between the two at which ``excess`` turns positive."""
    if excess(outside) <= 0:
        return outside
    for _ in range(60):
        middle = (inside + outside) / 2
        if excess(middle) <= 0:
            inside = middle
        else:
            outside = middle
    return inside


def paired_contrast(
    values: Sequence[float] | np.ndarray,
    baseline: Sequence[float] | np.ndarray,
    weights: Sequence[float] | np.ndarray | None = None,
    clusters: Sequence[str] | None = None,
    *,
    shares: bool,
) -> Contrast:
    """Mean difference of paired scores, by the method for shares or for other scores.

    The caller says whether the scores are shares, because losses below 1 look like shares.

    - Shares that are independent zeros and ones of equal weight: McNemar's exact test and Tango's
      interval. The interval is widened to 0 if the test does not reject, so that both agree at
      any number of items.
    - Other shares: :func:`clustered_shares`.
    - Other scores, such as losses, and shares outside 0 to 1: Student's t over clusters, test and
      interval. If all clusters differ equally: no interval, and :func:`sign_flip_test`.

    Args:
        values: ``[n]``, finite, n >= 1: scores of the model.
        baseline: ``[n]``: scores of the baseline on the same items.
        weights: ``[n]``, above 0: weights of the items in the mean. Default: 1 each.
        clusters: Name of each item's cluster. Default: every item is a cluster.
    """
    x, b = np.asarray(values, dtype=np.float64), np.asarray(baseline, dtype=np.float64)
    w = np.ones_like(x) if weights is None else np.asarray(weights, dtype=np.float64)
    if not np.isfinite([x, b, w]).all():
        raise ConfigError("paired_contrast: values and baseline must be finite, got others.")
    plain = cluster_ratio(w * (x - b), w, clusters)
    both = np.concatenate([x, b])
    if not shares or not ((both >= 0) & (both <= 1)).all():
        return _t_contrast(plain, w * (x - b), w, clusters)
    alone = clusters is None or len(set(clusters)) == x.size
    if alone and len(set(w)) == 1 and set(np.unique(both)) <= {0.0, 1.0}:
        wins, losses = int((x > b).sum()), int((x < b).sum())
        p, interval = mcnemar_test(wins, losses), tango_interval(wins, losses, x.size)
        assert interval.low is not None
        assert interval.high is not None
        if p > 1 - LEVEL:
            low, high = min(0.0, interval.low), max(0.0, interval.high)
            interval = replace(interval, low=low, high=high)
        return Contrast(interval, p, "McNemar, exact")
    return clustered_shares(x - b, w, clusters)


def clustered_shares(
    differences: np.ndarray, weights: np.ndarray, clusters: Sequence[str] | None = None
) -> Contrast:
    r"""Mean of differences from -1 to 1 that come in clusters: adjusted Wald, Student's t.

    As in Agresti and Min's interval, two pseudo-items of weight u are added, whose wins and losses
    cancel. The variance is taken over clusters:

    .. math:: \tilde r = \frac{\sum S_g}{\sum W_g + 2 u}, \quad
              v = \frac{\tfrac{G}{G-1} \sum (S_g - r W_g)^2 + u^2}{(\sum W_g + 2 u)^2}

    with sums S and weights W of G clusters and their ratio r. With one item per cluster u is an
    item's mean weight: Agresti and Min's interval with t for z. In larger clusters u is the
    geometric mean of an item's weight, right for independent items, and of a cluster's, right for
    equal items of a cluster. If all clusters have the same ratio, u is a cluster's mean weight.

    Source: A. Agresti, Y. Min, Stat. Med. 24 (2005), 729; the weight in clusters is ours, and
    simulated in ``tests/lab/stats/test_coverage.py``.
    """
    sums, num_items = cluster_sums(weights * differences, clusters)
    sizes, _ = cluster_sums(weights, clusters)
    n, mean = len(sums), float(sums.sum() / sizes.sum())
    if n == 1:
        return Contrast(Interval(mean, None, None, LEVEL, 1, "none: one cluster"), None, _T_TEST)
    squares = float(np.square(sums - mean * sizes).sum())
    apart = squares > 1e-24 * float(np.square(sizes).sum())
    unit = float(sizes.mean()) / (math.sqrt(float(num_items.mean())) if apart else 1.0)
    total = float(sizes.sum()) + 2 * unit
    centre = float(sums.sum()) / total
    error = math.sqrt(n / (n - 1) * squares + unit**2) / total
    half = t_quantile((1 + LEVEL) / 2, n - 1) * error
    from scipy.special import stdtr

    p = min(1.0, 2 * float(stdtr(n - 1, -abs(centre) / error)))
    low, high = max(-1.0, min(mean, centre - half)), min(1.0, max(mean, centre + half))
    method = "adjusted Wald over clusters, Student t"
    return Contrast(Interval(mean, low, high, LEVEL, n, method), p, f"{_T_TEST}, adjusted")


def _t_contrast(
    plain: Interval, totals: np.ndarray, weights: np.ndarray, clusters: Sequence[str] | None
) -> Contrast:
    """Student's t test and interval; sign flips and no interval if all clusters are equal."""
    if plain.low is None or plain.high is None:
        return Contrast(plain, None, _T_TEST)
    sums, sizes = cluster_sums(totals, clusters)[0], cluster_sums(weights, clusters)[0]
    error = (plain.high - plain.low) / 2 / t_quantile((1 + LEVEL) / 2, plain.n - 1)
    if error <= 1e-12 * float(np.abs(sums / sizes).max()):
        none = replace(plain, low=None, high=None, method="none: no cluster differs from another")
        return Contrast(none, sign_flip_test(sums), "sign flips of clusters")
    from scipy.special import stdtr

    p = 2 * float(stdtr(plain.n - 1, -abs(plain.mean) / error))
    return Contrast(plain, min(1.0, p), _T_TEST)
