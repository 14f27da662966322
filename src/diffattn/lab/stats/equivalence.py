"""How much of one model, or of its data, suffices for the loss of another."""

from dataclasses import dataclass

import numpy as np

from diffattn.errors import ConfigError
from diffattn.lab.stats.intervals import LEVEL, Interval, t_quantile
from diffattn.lab.stats.power_law import PowerLaw


@dataclass(frozen=True, kw_only=True, slots=True)
class Equivalence:
    """``x`` of one law gives the loss that ``other_x`` of another gives."""

    x: float
    other_x: float
    loss: float
    ratio: Interval
    """Of ``x / other_x``: 0.62 means that 62 % is enough. ``n`` counts the points of the fit with
    fewer."""
    extrapolated: bool
    """Whether one of the two lies outside the points of its fit."""


def equivalent(
    x: float, fit_a: PowerLaw, fit_b: PowerLaw, *, extrapolate: bool = False
) -> Equivalence:
    r"""Where the second law reaches the loss that the first has at ``x``.

    .. math:: x_b = ((L_a(x) - c_b) / a_b)^{-1 / b_b}

    Source: arXiv:2410.05258v2, section 3.2.

    Args:
        x: In the unit of both fits.
        fit_a: ``"offset"`` or ``"kaplan"``.
        fit_b: ``"offset"`` or ``"kaplan"``.
        extrapolate: Allow an ``x`` outside the points of its fit, where only its form decides.

    Raises:
        ConfigError: Outside the points and not asked to extrapolate, or the second law never
            reaches the loss.
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
    # d log(x / other) by the parameters of either fit: other moves by dL / L_b'(other).
    a, b, _ = _abc(fit_b)
    slope = -a * b * other ** (-b) / other
    spread = float(np.hypot(first, second)) / abs(slope * other)
    fewest = min(fit_a.degrees_of_freedom, fit_b.degrees_of_freedom)
    half = min(t_quantile((1 + LEVEL) / 2, fewest) * spread, 700.0)  # exp stays finite
    low, high = (float(x / other * np.exp(sign * half)) for sign in (-1, 1))
    return Interval(x / other, low, high, LEVEL, n, "delta method, of the logarithm")


def _abc(fit: PowerLaw) -> tuple[float, float, float]:
    return fit.parameters["a"], fit.parameters["b"], fit.parameters.get("c", 0.0)
