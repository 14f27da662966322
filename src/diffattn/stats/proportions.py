"""Shares of successes: their interval, and the exact test of two of them."""

import math

from diffattn.errors import ConfigError
from diffattn.stats.intervals import Interval

_Z_95 = 1.959963984540054  # two-sided 95 % quantile of the normal distribution


def wilson_interval(successes: int, trials: int) -> Interval:
    r"""95 % score interval of a probability, sound for few trials and for shares of 0 and 1.

    .. math::
        \frac{\hat p + z^2 / 2n \pm z \sqrt{\hat p (1 - \hat p) / n + z^2 / 4n^2}}{1 + z^2 / n}

    Source: E. B. Wilson, J. Am. Stat. Assoc. 22 (1927), 209-212.

    Args:
        successes: From 0 to ``trials``.
        trials: n, 1 or more, independent.

    Returns:
        The share as ``mean``, and its interval.

    Raises:
        ConfigError: The counts are no such numbers.
    """
    _check("wilson_interval", successes, trials)
    share, z2 = successes / trials, _Z_95**2
    centre = share + z2 / (2 * trials)
    half = _Z_95 * math.sqrt(share * (1 - share) / trials + z2 / (4 * trials**2))
    # Exact at the ends, where rounding would leave 1e-17.
    low = 0.0 if successes == 0 else (centre - half) / (1 + z2 / trials)
    high = 1.0 if successes == trials else (centre + half) / (1 + z2 / trials)
    return Interval(share, low, high, 0.95, trials, "Wilson score")


def fisher_exact(successes: int, trials: int, other_successes: int, other_trials: int) -> float:
    r"""Two-sided p-value of Fisher's exact test that two shares have one probability.

    The sum of the hypergeometric probabilities of all tables with these margins that are at most
    as probable as the one found.

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
    total = successes + other_successes
    tables = range(max(0, total - other_trials), min(total, trials) + 1)
    # Whole numbers, so that equally probable tables are exactly equal.
    ways = {k: math.comb(trials, k) * math.comb(other_trials, total - k) for k in tables}
    return sum(n for n in ways.values() if n <= ways[successes]) / sum(ways.values())


def _check(where: str, successes: int, trials: int) -> None:
    if trials < 1 or not 0 <= successes <= trials:
        raise ConfigError(
            f"{where}: successes must be from 0 to trials, and trials 1 or more, "
            f"got {successes} of {trials}."
        )
