"""How many parameters or tokens one model needs to reach the loss of another."""

from dataclasses import dataclass

import numpy as np

from diffattn.errors import ConfigError
from diffattn.lab.stats.intervals import LEVEL, Interval, t_quantile
from diffattn.lab.stats.power_law import PowerLaw


@dataclass(frozen=True, kw_only=True, slots=True)
class Equivalence:
    """The first law has at ``x`` the loss that the second has at ``other_x``."""

    x: float
    other_x: float
    loss: float
    ratio: Interval
    """``x / other_x``. At 0.62 the first model needs 62 % of the second's parameters or tokens.
    ``n``: number of points of the fit with fewer points."""
    extrapolated: bool
    """Whether ``x`` or ``other_x`` lies outside the points of its fit."""


def equivalent(
    x: float, fit_a: PowerLaw, fit_b: PowerLaw, *, extrapolate: bool = False
) -> Equivalence:
    r"""Find where the second law reaches the loss that the first has at ``x``.

    .. math:: x_b = ((L_a(x) - c_b) / a_b)^{-1 / b_b}

    Source: arXiv:2410.05258v2, section 3.2.

    Args:
        x: Parameters or tokens, in the unit of both fits.
        extrapolate: Allow x and x_b outside the points, where only the form of a law decides.

    Raises:
        ConfigError: x or x_b lies outside the points of its fit without ``extrapolate``, or the
            second law never reaches the loss.
    """
    loss = float(fit_a.predict(x))
    other = _inverse(fit_b, loss)
    outside = [
        f"{at:.4g} (points from {fit.x.min():.4g} to {fit.x.max():.4g})"
        for at, fit in ((x, fit_a), (other, fit_b))
        if not fit.x.min() * (1 - 1e-9) <= at <= fit.x.max() * (1 + 1e-9)
    ]
    if outside and not extrapolate:
        raise ConfigError(
            f"equivalent: both x must lie within the points of their fits, got {outside[0]}. "
            "What a fit says beyond them has to be asked for."
        )
    ratio = _ratio_interval(x, fit_a, other, fit_b)
    return Equivalence(x=x, other_x=other, loss=loss, ratio=ratio, extrapolated=bool(outside))


def _inverse(fit: PowerLaw, loss: float) -> float:
    a, b, c = _abc(fit)
    if (loss - c) / a <= 0:
        raise ConfigError(
            f"equivalent: the second law must reach the loss {loss:.4g} of the first, got one that "
            f"never leaves the side of {c:.4g}."
        )
    with np.errstate(over="ignore", under="ignore"):
        x = float(np.power((loss - c) / a, -1 / b))
    if not 0 < x < np.inf:
        raise ConfigError(
            f"equivalent: the second law must reach the loss {loss:.4g} at an x that a number "
            f"holds, got {x:g}: it is nearly flat."
        )
    return x


def _ratio_interval(x: float, fit_a: PowerLaw, other: float, fit_b: PowerLaw) -> Interval:
    n = min(len(fit_a.y), len(fit_b.y))
    first, second = fit_a.spread_at(x), fit_b.spread_at(other)
    if first is None or second is None:
        method = "none: no more different x than parameters"
        return Interval(x / other, None, None, LEVEL, n, method)
    # Delta method for log(x / other): an error dL of either loss moves other by dL / L_b'(other).
    a, b, _ = _abc(fit_b)
    slope = -a * b * other ** (-b) / other
    spread = float(np.hypot(first, second)) / abs(slope * other)
    fewest = min(fit_a.degrees_of_freedom, fit_b.degrees_of_freedom)
    half = min(t_quantile((1 + LEVEL) / 2, fewest) * spread, 700.0)  # exp stays finite
    low, high = (float(x / other * np.exp(sign * half)) for sign in (-1, 1))
    return Interval(x / other, low, high, LEVEL, n, "delta method, of the logarithm")


def _abc(fit: PowerLaw) -> tuple[float, float, float]:
    return fit.parameters["a"], fit.parameters["b"], fit.parameters.get("c", 0.0)
