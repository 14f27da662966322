"""Student-t intervals of a mean, on the standard library and numpy."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from diffattn.errors import ConfigError


@dataclass(frozen=True, slots=True)
class Interval:
    """A mean and the interval that covers it at ``level``, over ``n`` independent values."""

    mean: float
    low: float | None
    """Lower end; ``None`` if one value says nothing about the spread."""
    high: float | None
    """Upper end; ``None`` if one value says nothing about the spread."""
    level: float
    n: int
    method: str


def mean_interval(values: Sequence[float] | np.ndarray, level: float = 0.95) -> Interval:
    r"""Two-sided Student-t interval of the mean of independent values.

    .. math:: \bar x \pm t_{(1 + \text{level}) / 2,\; n - 1}\; s / \sqrt{n}

    Args:
        values: ``[n]``, finite, n >= 1; one value per seed.
        level: Coverage, in (0, 1). Default 0.95.

    Returns:
        The interval; for n = 1 its ends are ``None``.

    Raises:
        ConfigError: ``values`` is empty, not a list of finite numbers, or ``level`` is outside
            (0, 1).
    """
    x = np.asarray(values, dtype=np.float64)
    if x.ndim != 1 or x.size == 0:
        raise ConfigError(f"mean_interval: values must be [n] with n >= 1, got {list(x.shape)}.")
    if not np.isfinite(x).all():
        first = int(np.flatnonzero(~np.isfinite(x))[0])
        raise ConfigError(f"mean_interval: values must be finite, got {x[first]} at {first}.")
    if not 0 < level < 1:
        raise ConfigError(f"mean_interval: level must be in (0, 1), got {level}.")
    mean, n = float(x.mean()), x.size
    if n == 1:
        return Interval(mean, None, None, level, n, "none: one value")
    half = t_quantile((1 + level) / 2, n - 1) * float(x.std(ddof=1)) / math.sqrt(n)
    return Interval(mean, mean - half, mean + half, level, n, "Student t")


def t_quantile(p: float, df: float) -> float:
    r"""Quantile of Student's t distribution.

    Solves :math:`I_{\nu / (\nu + t^2)}(\nu / 2, 1 / 2) = 2 (1 - p)` for t by bisection, where I is
    the regularised incomplete beta function.

    Args:
        p: Probability below the quantile, in (0, 1).
        df: Degrees of freedom ν, above 0.

    Returns:
        t, to about 1e-12 of its size.

    Raises:
        ConfigError: ``p`` or ``df`` is out of range.
    """
    if not 0 < p < 1:
        raise ConfigError(f"t_quantile: p must be in (0, 1), got {p}.")
    if not (df > 0 and math.isfinite(df)):
        raise ConfigError(f"t_quantile: df must be positive and finite, got {df}.")
    if p == 0.5:
        return 0.0
    if p < 0.5:
        return -t_quantile(1 - p, df)
    tails = 2 * (1 - p)
    low, high = 0.0, 1.0
    while _two_tails(high, df) > tails:
        low, high = high, 2 * high
    middle = (low + high) / 2
    while low < middle < high:
        if _two_tails(middle, df) > tails:
            low = middle
        else:
            high = middle
        middle = (low + high) / 2
    return middle


def _two_tails(t: float, df: float) -> float:
    """P(|T| > t)."""
    # Both fractions are formed by division, not as 1 - x, so that neither tail loses digits.
    total = df + t * t
    return _incomplete_beta(df / 2, 0.5, df / total, t * t / total)


def _incomplete_beta(a: float, b: float, x: float, complement: float) -> float:
    """I_x(a, b), with ``complement`` = 1 - x."""
    if x == 0 or complement == 0:
        return float(complement == 0)
    # The continued fraction converges fast only left of the mean of the beta distribution.
    if x > (a + 1) / (a + b + 2):
        return 1 - _incomplete_beta(b, a, complement, x)
    log_front = math.lgamma(a + b) - math.lgamma(a) - math.lgamma(b)
    log_front += a * math.log(x) + b * math.log(complement)
    return math.exp(log_front) * _beta_fraction(a, b, x) / a


def _beta_fraction(a: float, b: float, x: float) -> float:
    """Continued fraction of the incomplete beta function, by Lentz's method."""
    tiny = 1e-300  # stands in for an exact 0, which the method would divide by
    c, d = 1.0, 1 / ((1 - (a + b) * x / (a + 1)) or tiny)
    fraction = d
    for m in range(1, 10_000):
        even = m * (b - m) * x / ((a + 2 * m - 1) * (a + 2 * m))
        odd = -(a + m) * (a + b + m) * x / ((a + 2 * m) * (a + 2 * m + 1))
        for term in (even, odd):
            d = 1 / ((1 + term * d) or tiny)
            c = (1 + term / c) or tiny
            fraction *= c * d
        if abs(c * d - 1) < 1e-15:
            return fraction
    raise AssertionError(f"incomplete beta did not converge at a={a}, b={b}, x={x}")
