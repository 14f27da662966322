"""The interval that every function of this folder returns; intervals of a mean and a median."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from diffattn.errors import ConfigError

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


def mean_interval(values: Sequence[float] | np.ndarray) -> Interval:
    r"""Two-sided Student-t interval of the mean of independent values.

    .. math:: \bar x \pm t_{(1 + \text{level}) / 2,\; n - 1}\; s / \sqrt{n}

    Args:
        values: ``[n]``, finite, n >= 1; one value per seed. For n = 1 the ends are ``None``.

    Raises:
        ConfigError: ``values`` is empty or holds a number that is not finite.
    """
    x = _finite("mean_interval", values)
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


def median_interval(values: Sequence[float] | np.ndarray) -> Interval:
    r"""Two-sided interval of the median of independent values, by the sign test.

    .. math:: [x_{(k)},\; x_{(n + 1 - k)}],\quad
        2\, P\big(\mathrm{B}(n, \tfrac12) < k\big) \le 1 - \text{level}

    with the largest k that fulfils this. It covers at least ``level`` for any distribution. With
    fewer than 6 values, at level 0.95, no k fulfils the condition, and the ends are ``None``.
    """
    x = np.sort(_finite("median_interval", values))
    n, k, below = x.size, 0, 1
    while 2 * below <= (1 - LEVEL) * 2**n:  # below / 2**n = P(B(n, ½) <= k)
        k += 1
        below += math.comb(n, k)
    low, high = (None, None) if k == 0 else (float(x[k - 1]), float(x[n - k]))
    return Interval(float(np.median(x)), low, high, LEVEL, n, "sign test")


def _finite(where: str, values: Sequence[float] | np.ndarray) -> np.ndarray:
    x = np.asarray(values, dtype=np.float64)
    if x.ndim != 1 or x.size == 0:
        raise ConfigError(f"{where}: values must be [n] with n >= 1, got {list(x.shape)}.")
    if not np.isfinite(x).all():
        first = int(np.flatnonzero(~np.isfinite(x))[0])
        raise ConfigError(f"{where}: values must be finite, got {x[first]} at {first}.")
    return x


def t_quantile(p: float, df: float) -> float:
    """Quantile of Student's t distribution with ``df`` degrees of freedom, to 1e-10 of its size."""
    from scipy.special import stdtrit  # loads in a fifth of the time of scipy.stats

    return float(stdtrit(df, p))
