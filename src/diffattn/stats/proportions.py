"""Proportions and means of shares: intervals, range by sampling alone, the exact test of two."""

from collections.abc import Sequence

import numpy as np

from diffattn.errors import ConfigError
from diffattn.stats.bootstrap import bootstrap_mean
from diffattn.stats.intervals import Interval


def wilson_interval(successes: int, n: int, level: float = 0.95) -> Interval:
    r"""Wilson's score interval of a proportion.

    .. math:: \frac{\hat p + z^2 / 2n \pm z \sqrt{\hat p (1 - \hat p) / n + z^2 / 4n^2}}
              {1 + z^2 / n}

    Source: E. B. Wilson, J. Am. Stat. Assoc. 22 (1927), 209.

    Args:
        successes: From 0 to n.
        n: Independent trials, 1 or more.
        level: Coverage, in (0, 1). Default 0.95.

    Raises:
        ConfigError: An argument is out of range.
    """
    _check("wilson_interval", successes, n)
    if not 0 < level < 1:
        raise ConfigError(f"wilson_interval: level must be in (0, 1), got {level}.")
    from scipy.stats import binomtest

    ends = binomtest(successes, n).proportion_ci(level, "wilson")
    return Interval(successes / n, float(ends.low), float(ends.high), level, n, "Wilson")


def share_interval(
    values: Sequence[float] | np.ndarray,
    clusters: Sequence[str] | None = None,
    *,
    level: float = 0.95,
) -> Interval:
    """Mean of values from 0 to 1 and the interval that fits them.

    Independent zeros and ones are a proportion: Wilson's interval. Shares in between, or several
    values per cluster, get the bootstrap over clusters; but where every value is 0, or every value
    is 1, resampling would show no spread at all, and Wilson's interval over clusters is given.

    Source: E. B. Wilson, J. Am. Stat. Assoc. 22 (1927), 209; B. Efron, Ann. Stat. 7 (1979), 1.

    Args:
        values: ``[n]``, from 0 to 1, n >= 1.
        clusters: Name of each value's cluster. Default: every value is its own.
        level: Coverage, in (0, 1). Default 0.95.

    Returns:
        The interval; ``n`` counts clusters.

    Raises:
        ConfigError: A value lies outside [0, 1], there is none, or the lengths differ.
    """
    x = np.asarray(values, dtype=np.float64)
    if x.size == 0 or not ((x >= 0) & (x <= 1)).all():
        raise ConfigError("share_interval: values must be one or more from 0 to 1, got others.")
    names = [str(i) for i in range(len(x))] if clusters is None else list(clusters)
    num_clusters = len(set(names))
    alone = len(names) == len(x) == num_clusters
    if x.min() == x.max() and x[0] in (0.0, 1.0) and len(names) == len(x):
        return wilson_interval(int(x[0]) * num_clusters, num_clusters, level)
    if alone and set(np.unique(x)) <= {0.0, 1.0}:
        return wilson_interval(int(x.sum()), num_clusters, level)
    return bootstrap_mean(x, names, level=level)


def expected_range(p: float, n: int, draws: int, repeats: int = 20_000, seed: int = 0) -> float:
    """Mean of (best − worst) of ``draws`` binomial proportions: what sampling alone brings.

    Args:
        p: Success probability, in [0, 1].
        n: Trials per draw, 1 or more.
        draws: Proportions compared, 1 or more.
        repeats: Simulated sets; the error is about 0.5 / sqrt(n * repeats).
        seed: Of the simulation.

    Raises:
        ConfigError: An argument is out of range.
    """
    if not 0 <= p <= 1 or n < 1 or draws < 1 or repeats < 1:
        raise ConfigError(
            "expected_range: p must lie in [0, 1] and n, draws, repeats be 1 or more, "
            f"got {p}, {n}, {draws}, {repeats}."
        )
    counts = np.random.default_rng(seed).binomial(n, p, size=(repeats, draws))
    return float(np.ptp(counts, axis=1).mean()) / n


def fisher_exact(successes: int, trials: int, other_successes: int, other_trials: int) -> float:
    r"""Two-sided p-value of Fisher's exact test that two shares have one probability.

    The sum of the hypergeometric probabilities of all tables with these margins that are at most
    as probable as the one observed.

    Source: R. A. Fisher, J. R. Stat. Soc. 85 (1922), 87-94.

    Args:
        successes: Of the one group.
        trials: Of the one group, 1 or more.
        other_successes: Of the other group.
        other_trials: Of the other group, 1 or more.

    Returns:
        The p-value, from 0 to 1.

    Raises:
        ConfigError: The counts are no such numbers.
    """
    _check("fisher_exact", successes, trials)
    _check("fisher_exact", other_successes, other_trials)
    from scipy import stats

    table = [
        [successes, trials - successes],
        [other_successes, other_trials - other_successes],
    ]
    return float(stats.fisher_exact(table).pvalue)


def _check(where: str, successes: int, trials: int) -> None:
    if trials < 1 or not 0 <= successes <= trials:
        raise ConfigError(
            f"{where}: successes must lie in [0, n] and n be 1 or more, "
            f"got {successes} of {trials}."
        )
