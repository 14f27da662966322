"""Intervals of means, medians, shares, and of means over items that come in clusters."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from diffattn.errors import ConfigError

Numbers = Sequence[float] | np.ndarray
LEVEL = 0.95
"""Coverage of every interval of this folder; only ``wilson_interval`` takes another level."""


@dataclass(frozen=True, slots=True)
class Interval:
    """An estimate and its confidence interval at ``level``, over ``n`` independent values."""

    mean: float
    """The estimate: a mean, or the quantity that the function names, such as a median."""
    low: float | None
    high: float | None
    """``None``, as ``low``, if the values do not show a spread, as a single value."""
    level: float
    n: int
    method: str

    def recorded(self) -> Any:
        """The fields of an interval in a study's records."""
        return {"mean": self.mean, "low": self.low, "high": self.high, "level": self.level}

    def around_mean(self) -> dict[str, Any]:
        """All fields but the mean, as records of evaluations name them."""
        return {name: getattr(self, name) for name in ("low", "high", "level", "n", "method")}


def mean_interval(values: Numbers) -> Interval:
    r"""Two-sided Student-t interval of the mean of independent values.

    .. math:: \bar x \pm t_{(1 + \text{level}) / 2,\; n - 1}\; s / \sqrt{n}

    ``values``: ``[n]``, finite, n >= 1. For n = 1 the ends are ``None``.
    """
    x = _checked("mean_interval", values)
    mean, n = float(x.mean()), x.size
    if n == 1:
        return Interval(mean, None, None, LEVEL, n, "none: one value")
    with np.errstate(over="ignore"):  # a spread above the largest float: infinite ends
        spread = float(x.std(ddof=1))
    half = t_quantile((1 + LEVEL) / 2, n - 1) * spread / math.sqrt(n)
    return Interval(mean, mean - half, mean + half, LEVEL, n, "Student t")


def mean_of_seeds(values: Sequence[float]) -> Any:
    """The record of one value per seed: values, mean, interval and number."""
    return {"values": list(values), **mean_interval(values).recorded(), "n": len(values)}


def median_interval(values: Numbers) -> Interval:
    r"""Two-sided interval of the median of independent values, by the sign test.

    .. math:: [x_{(k)},\; x_{(n + 1 - k)}],\quad
        2\, P\big(\mathrm{B}(n, \tfrac12) < k\big) \le 1 - \text{level}

    with the largest k that fulfils this. It covers at least ``level`` for any distribution. With
    fewer than 6 values, at level 0.95, no k fulfils the condition, and the ends are ``None``.
    """
    from scipy.stats import binom

    x = np.sort(_checked("median_interval", values))
    n = x.size
    k = int(binom.ppf((1 - LEVEL) / 2, n, 0.5))
    low, high = (None, None) if k == 0 else (float(x[k - 1]), float(x[n - k]))
    return Interval(float(np.median(x)), low, high, LEVEL, n, "sign test")


def _checked(where: str, values: Numbers, *, are_shares: bool = False) -> np.ndarray:
    x = np.asarray(values, dtype=np.float64)
    least, most = (0.0, 1.0) if are_shares else (-math.inf, math.inf)
    if x.ndim != 1 or x.size == 0 or not (np.isfinite(x) & (x >= least) & (x <= most)).all():
        kind = "numbers from 0 to 1" if are_shares else "finite numbers"
        raise ConfigError(f"{where}: values must be one or more {kind}, got others.")
    return x


def t_quantile(p: float, df: float) -> float:
    """Quantile of Student's t distribution, to 1e-10 of its size."""
    from scipy.special import stdtrit  # loads in a fifth of the time of scipy.stats

    return float(stdtrit(df, p))


def cluster_mean(values: Numbers, clusters: Sequence[str] | None = None) -> Interval:
    """Mean of all values and its interval: :func:`cluster_ratio` with every weight 1."""
    return cluster_ratio(values, np.ones(np.shape(values)), clusters)


def cluster_ratio(
    totals: Numbers, weights: Numbers, clusters: Sequence[str] | None = None
) -> Interval:
    r"""Weighted mean as a ratio of sums, :math:`r = \sum_i t_i / \sum_i w_i`, and its interval.

    For example the loss per token: totals are summed losses, weights are numbers of tokens.
    Clusters of weight 0 are left out.

    .. math:: r \pm t_{(1 + \text{level}) / 2,\; G - 1}
              \sqrt{\tfrac{G - 1}{G} \sum_{g=1}^G (r_{-g} - r)^2}

    over G clusters, :math:`r_{-g}` the ratio without cluster g. With equal weights and one value
    per cluster it is Student's interval. ``docs/records/coverage.md`` has its simulated coverage.

    Source: J. W. Tukey, Ann. Math. Stat. 29 (1958), 614; R. M. Bell, D. F. McCaffrey, Surv.
    Methodol. 28 (2002), 169 (few clusters).

    Args:
        totals: ``[n]``, finite, n >= 1; 0 where the weight is 0.
        weights: ``[n]``, finite, 0 or more, not all 0.
        clusters: Name of each item's cluster, counted by ``n``. Default: every item is a cluster.
    """
    t, w = _checked("cluster_ratio", totals), np.asarray(weights, dtype=np.float64)
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


def wilson_interval(successes: int, n: int, level: float = LEVEL) -> Interval:
    r"""Wilson's score interval of a proportion.

    .. math:: \frac{\hat p + z^2 / 2n \pm z \sqrt{\hat p (1 - \hat p) / n + z^2 / 4n^2}}
              {1 + z^2 / n}

    Source: E. B. Wilson, J. Am. Stat. Assoc. 22 (1927), 209.
    """
    from scipy.stats import binomtest

    ends = binomtest(successes, n).proportion_ci(level, "wilson")
    return Interval(successes / n, float(ends.low), float(ends.high), level, n, "Wilson")


def share_interval(values: Numbers, clusters: Sequence[str] | None = None) -> Interval:
    r"""Mean of values from 0 to 1 and its interval.

    Independent zeros and ones get Wilson's interval of a proportion. Shares in between, or several
    values per cluster, get Wilson's interval with an effective number of independent items,

    .. math:: n_\text{eff} = \frac{\hat p (1 - \hat p)}{v}, \quad
              v = \frac{G \hat v + \hat p (1 - \hat p) / n}{G + 1},

    with Student's t at G - 1 degrees of freedom in place of z, for G clusters with n values in all.
    :math:`\hat v` is the jackknife variance over clusters. The variance of n independent items is
    averaged in, as a few clusters near 0 or 1 have almost no spread. If every value is 0, or every
    value is 1, each cluster counts as one item.

    Source: E. B. Wilson, J. Am. Stat. Assoc. 22 (1927), 209; E. L. Korn, B. I. Graubard, Surv.
    Methodol. 24 (1998), 193 (effective sample size); the weight of one cluster is ours.

    Args:
        values: ``[n]``, from 0 to 1, n >= 1.
        clusters: Name of each value's cluster, counted by ``n``. Default: every value is a cluster.
            A single one has no interval, unless all its values are 0 or all are 1.
    """
    x = _checked("share_interval", values, are_shares=True)
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


def mean_of_shares(groups: Sequence[Numbers]) -> Interval:
    r"""Mean of the groups' means and its interval, also near 0 and 1.

    Groups are fixed, such as the tasks of a benchmark, and only their items are a sample. It is
    Wilson's interval, with Student's t, :math:`n_\text{eff} = \bar p (1 - \bar p) / v` and
    :math:`v = \sum_k v_k / (\max(1, n_k - 1) K^2)`. Here v_k is the mean squared deviation of
    group k's values and one more value, which is 1 with probability :math:`\bar p`, else 0. If all
    values are 0, or all are 1, or a single group holds only zeros and ones, this is Wilson's
    interval of all items together.

    Source: as :func:`share_interval`; the value added per group is ours.

    ``groups``: one or more, each ``[n]`` of values from 0 to 1, n >= 1. ``n`` counts values.
    """
    arrays = [_checked("mean_of_shares", group, are_shares=True) for group in groups]
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
    """Mean of (best − worst) of ``draws`` proportions of ``n`` trials of probability ``p``."""
    # The error of 20,000 simulated sets is about 0.004 / sqrt(n).
    counts = np.random.default_rng(0).binomial(n, p, size=(20_000, draws))
    return float(np.ptp(counts, axis=1).mean()) / n
