"""Paired differences of runs and of items, their tests, and Holm's adjustment of several tests."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from diffattn.lab.stats.intervals import (
    LEVEL,
    Interval,
    Numbers,
    cluster_ratio,
    cluster_sums,
    mean_interval,
    t_quantile,
)


def paired_difference(values: Numbers, baseline: Numbers) -> Interval:
    r"""Student-t interval of the mean difference of paired values.

    .. math:: \bar d \pm t_{(1 + \text{level}) / 2,\; n - 1}\; s_d / \sqrt{n}, \quad d_i = x_i - b_i

    Pairing removes effects that both runs of a seed share, such as the order of the data.

    Args:
        values: ``[n]``, finite, n >= 1.
        baseline: ``[n]``; position i is the run with the same seed as position i of ``values``.
    """
    x, b = np.asarray(values, dtype=np.float64), np.asarray(baseline, dtype=np.float64)
    assert x.shape == b.shape, "both have a run of each seed"
    return mean_interval(x - b)


def paired_t_test(differences: Numbers) -> float | None:
    """Two-sided p-value of Student's t test that paired differences have mean 0.

    One difference has none. If all are equal, p is that of random signs.

    Source: Student, Biometrika 6 (1908), 1-25.
    """
    x, mean = np.asarray(differences, dtype=np.float64), mean_interval(differences).mean
    if x.size == 1:
        return None
    error = float(x.std(ddof=1)) / x.size**0.5
    if error <= 1e-12 * float(np.abs(x).max()):
        return _sign_flips(x)
    return _t_test(mean, error, x.size - 1)


def _t_test(mean: float, error: float, df: int) -> float:
    from scipy.special import stdtr  # loads in a fifth of the time of scipy.stats

    return min(1.0, 2 * float(stdtr(df, -abs(mean) / error)))


def mcnemar_test(wins: int, losses: int) -> float:
    """Exact two-sided p-value of McNemar's test: are wins and losses equally likely?

    Source: Q. McNemar, Psychometrika 12 (1947), 153; exact form by the binomial distribution.
    """
    if wins == losses == 0:
        return 1.0
    from scipy.stats import binomtest

    return float(binomtest(wins, wins + losses).pvalue)


def _sign_flips(differences: np.ndarray) -> float:
    """Two-sided p-value of equal differences: the share of random signs with as large a sum.

    Source: R. A. Fisher, The Design of Experiments (1935), section 21.
    """
    return 2.0 ** (1 - differences.size) if differences.any() else 1.0


def holm(p_values: Sequence[float]) -> list[float]:
    r"""Holm's adjusted p-values: any true null falls below α with probability at most α.

    .. math:: \tilde p_{(i)} = \max_{j \le i} \min(1, (m - j + 1)\, p_{(j)})

    for the m p-values in rising order. The tests may depend on each other in any way.

    Source: S. Holm, Scand. J. Stat. 6 (1979), 65-70.
    """
    adjusted, least = [0.0] * len(p_values), 0.0
    for rank, i in enumerate(sorted(range(len(p_values)), key=p_values.__getitem__)):
        least = max(least, min(1.0, (len(p_values) - rank) * p_values[i]))
        adjusted[i] = least
    return adjusted


_T_TEST = "Student t over clusters"


@dataclass(frozen=True, slots=True)
class Contrast:
    """A mean difference, and the p-value of no difference.

    The p-value is at most ``1 - LEVEL`` exactly if the interval excludes 0.
    """

    interval: Interval
    p_value: float | None
    """Two-sided; ``None`` with one cluster."""
    test: str


def tango_interval(wins: int, losses: int, n: int) -> Interval:
    r"""Score interval of the difference of two paired proportions.

    It holds all Δ whose score statistic is at most z in size, q the likeliest share of losses:

    .. math:: \frac{b - c - n\Delta}{\sqrt{n\,(2 q + \Delta (1 - \Delta))}},
              \quad 2 n q^2 + ((2 n - b + c) \Delta - b - c)\, q = c\, \Delta (1 - \Delta)

    b wins and c losses are the items that only the first or only the second model has right.

    Source: T. Tango, Stat. Med. 17 (1998), 891.
    """
    from scipy.special import ndtri

    mean, z = (wins - losses) / n, float(ndtri((1 + LEVEL) / 2))

    def excess(delta: float) -> float:
        # Squared score statistic less z², times a positive factor; 0 or less inside.
        linear = (2 * n - wins + losses) * delta - wins - losses
        root = math.sqrt(max(0.0, linear**2 + 8 * n * losses * delta * (1 - delta)))
        # The form of the root that does not cancel digits.
        if linear <= 0:
            q = (root - linear) / (4 * n)
        else:
            q = 2 * losses * delta * (1 - delta) / (linear + root)
        return (wins - losses - n * delta) ** 2 - z * z * n * (2 * q + delta * (1 - delta))

    def bound(outside: float) -> float:
        inside = mean
        if excess(outside) <= 0:
            return outside
        for _ in range(60):
            middle = (inside + outside) / 2
            if excess(middle) <= 0:
                inside = middle
            else:
                outside = middle
        return inside

    return Interval(mean, bound(-1.0), bound(1.0), LEVEL, n, "Tango")


def paired_contrast(
    values: Numbers,
    baseline: Numbers,
    weights: Numbers | None = None,
    clusters: Sequence[str] | None = None,
    *,
    shares: bool,
) -> Contrast:
    """Mean difference of paired scores. The caller says if they are shares: losses can look alike.

    - Shares that are independent zeros and ones of equal weight: McNemar's exact test and Tango's
      interval, widened to 0 if the test does not reject.
    - Other shares: :func:`clustered_shares`.
    - Other scores, such as losses, and shares outside 0 to 1: Student's t over clusters, test and
      interval. If all clusters differ equally: no interval, and random signs.

    Args:
        values: ``[n]``, finite, n >= 1: scores of the model.
        baseline: ``[n]``: scores of the baseline on the same items.
        weights: ``[n]``, above 0: weights of the items in the mean. Default: 1 each.
        clusters: Name of each item's cluster. Default: every item is a cluster.
    """
    x, b = np.asarray(values, dtype=np.float64), np.asarray(baseline, dtype=np.float64)
    w = np.ones_like(x) if weights is None else np.asarray(weights, dtype=np.float64)
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

    with sums S and weights W of G clusters and their ratio r. u is the geometric mean of an item's
    weight, right for independent items, and of a cluster's, right for equal items of a cluster. If
    all clusters have the same ratio, u is a cluster's mean weight.

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
    p = _t_test(centre, error, n - 1)
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
        return Contrast(none, _sign_flips(sums), "sign flips of clusters")
    return Contrast(plain, _t_test(plain.mean, error, plain.n - 1), _T_TEST)
