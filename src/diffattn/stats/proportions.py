"""Proportions: their interval, their range by sampling alone, the exact test of two of them."""

import math

import numpy as np

from diffattn.errors import ConfigError
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
    if not 0 <= successes <= n or n < 1:
        raise ConfigError(
            f"wilson_interval: successes must lie in [0, n] and n be 1 or more, "
            f"got {successes} of {n}."
        )
    if not 0 < level < 1:
        raise ConfigError(f"wilson_interval: level must be in (0, 1), got {level}.")
    z = normal_quantile((1 + level) / 2)
    p = successes / n
    centre = (p + z * z / (2 * n)) / (1 + z * z / n)
    half = z * math.sqrt(p * (1 - p) / n + z * z / (4 * n * n)) / (1 + z * z / n)
    # Rounding must not push an end past the proportion itself.
    return Interval(
        p, min(p, max(0.0, centre - half)), max(p, min(1.0, centre + half)), level, n, "Wilson"
    )


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
    found = np.random.default_rng(seed).binomial(n, p, size=(repeats, draws))
    return float((found.max(1) - found.min(1)).mean()) / n


def normal_quantile(p: float) -> float:
    """Quantile of the standard normal distribution, by bisection to double precision.

    Args:
        p: Probability below the quantile, in (0, 1).
    """
    low, high = -40.0, 40.0
    middle = 0.0
    while low < middle < high:
        below = 0.5 * math.erfc(-middle / math.sqrt(2))
        low, high = (middle, high) if below < p else (low, middle)
        middle = (low + high) / 2
    return middle


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
