"""Power laws through measured losses, with intervals of their parameters."""

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from diffattn.errors import ConfigError
from diffattn.lab.stats.intervals import LEVEL, Interval, t_quantile

FORMS: dict[str, tuple[str, ...]] = {"offset": ("a", "b", "c"), "kaplan": ("a", "b")}
_EXPONENT_SPANS = np.geomspace(0.02, 60.0, 240)
"""Exponents to search, times ln(largest x / smallest x): from a line in ln x to a step."""


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class PowerLaw:
    """A fitted law and the points it was fitted to; see :func:`fit_power_law`."""

    form: str
    parameters: dict[str, float]
    x: np.ndarray = field(repr=False)
    """Parameters or tokens of each point, float64 ``[n]``."""
    y: np.ndarray = field(repr=False)
    """Loss of each point, float64 ``[n]``."""
    covariance: np.ndarray | None = field(repr=False)
    """Covariance of the parameters ``[p, p]`` by the delta method. ``None``: there are at most as
    many different x as parameters, or the law was not fitted."""
    r2: float
    """Share of the variance of y that the law explains."""
    max_error: float
    """Largest ``|y - predict(x)|``."""

    @property
    def values(self) -> np.ndarray:
        """The parameters ``[p]`` in the order of ``FORMS``."""
        return np.array(list(self.parameters.values()))

    @property
    def degrees_of_freedom(self) -> int:
        """Different x minus parameters."""
        return len(np.unique(self.x)) - len(self.parameters)

    def predict(self, x: Sequence[float] | np.ndarray | float) -> np.ndarray:
        """The loss of the law at ``x``, any shape, positive, also outside the data."""
        return _law_at(np.asarray(x, dtype=np.float64), self.values)

    def spread_at(self, x: float) -> float | None:
        """Standard error of the law at ``x``, by the delta method; ``None`` without covariance."""
        if self.covariance is None:
            return None
        gradient = _gradient_at(np.asarray(x, dtype=np.float64), self.values)
        return float(np.sqrt(max(0.0, gradient @ self.covariance @ gradient)))

    def interval(self, name: str) -> Interval:
        """Student-t interval of one parameter, by the delta method."""
        value, n, index = self.parameters[name], len(self.y), list(self.parameters).index(name)
        if self.covariance is None:
            method = "none: no more different x than parameters"
            return Interval(value, None, None, LEVEL, n, method)
        spread = float(np.sqrt(max(0.0, self.covariance[index, index])))
        half = t_quantile((1 + LEVEL) / 2, self.degrees_of_freedom) * spread
        return Interval(value, value - half, value + half, LEVEL, n, "delta method")


def fit_power_law(
    x: Sequence[float] | np.ndarray, y: Sequence[float] | np.ndarray, *, form: str = "offset"
) -> PowerLaw:
    r"""Fit a power law to losses.

    .. math:: L = a x^{-b} + c, \qquad L = a x^{-b}

    ``"offset"`` is ordinary least squares on the loss. ``"kaplan"``, also written
    :math:`(x_c / x)^b` with :math:`x_c = a^{1 / b}`, is least squares on the logarithm.

    Points with equal x, such as seeds of one size, share the error of the law there. So degrees of
    freedom count different x. The variance of a point is estimated from the means at each x and
    from all points; the larger estimate is used.

    Source: arXiv:2410.05258v2, section 3.2 (offset: its plotted curves); arXiv:2001.08361,
    Eq. (1.1).

    Args:
        x: ``[n]``, positive. Any unit.
        y: ``[n]``, positive for ``"kaplan"``.

    Returns:
        The law. An offset law's exponent b is positive: it falls with x, or rises to c if a < 0.

    Raises:
        ConfigError: The points are too few, out of range or all equal, or do not bend like a
            power law, so that no exponent fits them best.
    """
    points, losses = _checked(x, y, form)
    if form == "kaplan":
        slope, intercept = np.polyfit(np.log(points), np.log(losses), 1)
        return _law(form, points, losses, np.array([np.exp(intercept), -slope]))
    values, at_edge = fit_offset(points, losses[None])
    if at_edge[0]:
        raise ConfigError(
            "fit_power_law: the points must bend like a power law, got a best exponent at "
            f"the edge of what is searched ({values[0][1]:.3g})."
        )
    return _law(form, points, losses, values[0])


def fit_offset(x: np.ndarray, ys: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Least squares of a x^-b + c for many sets of y at once, for a bootstrap.

    Given b, a and c follow by linear least squares. So only b is searched: on a grid, then by
    Brent's method for the root of the derivative near the best grid point. It cannot diverge.

    Args:
        x: ``[n]``, positive, three different values or more.
        ys: ``[sets, n]``.

    Returns:
        a, b, c ``[sets, 3]``, and bool ``[sets]``: True if the best exponent lies at the edge of
        the search, so that the points do not determine it.
    """
    middle = np.exp(np.log(x).mean())
    z = np.log(x / middle)
    grid = _EXPONENT_SPANS / np.ptp(z)
    centred = ys - ys.mean(-1, keepdims=True)
    u = _centred_power(z, grid[:, None])  # [grid, n]
    best = np.argmax((centred @ u.T) ** 2 / (u * u).sum(-1), axis=-1)
    at_edge = (best == 0) | (best == len(grid) - 1)
    b = grid[best]
    for i in np.flatnonzero(~at_edge):
        exponent = _best_exponent(z, centred[i], grid[best[i] - 1], grid[best[i] + 1])
        at_edge[i] = exponent is None
        b[i] = b[i] if exponent is None else exponent
    u = _centred_power(z, b[:, None])  # [sets, n]
    a = (centred * u).sum(-1) / (u * u).sum(-1)
    c = ys.mean(-1) - a * np.exp(-b[:, None] * z).mean(-1)
    return np.stack([a * middle**b, b, c], -1), at_edge


def _centred_power(z: np.ndarray, b: np.ndarray | float) -> np.ndarray:
    """exp(-b z) less its mean over the points; expm1 keeps its digits for small b."""
    u = np.expm1(-b * z)
    return u - u.mean(-1, keepdims=True)


def _best_exponent(z: np.ndarray, centred: np.ndarray, low: float, high: float) -> float | None:
    """The exponent of the smallest sum of squares, a and c being the best for each exponent.

    ``None`` if all steeper exponents give the same sum, as far as floats can tell.
    """
    from scipy.optimize import brentq

    def slope(b: float) -> float:
        u = _centred_power(z, b)
        residuals = centred - u * (centred @ u) / (u @ u)
        return float(residuals @ (z * np.exp(-b * z)))

    if slope(low) * slope(high) > 0:
        return None
    return float(brentq(slope, low, high))


def _law_at(x: np.ndarray, p: np.ndarray) -> np.ndarray:
    return p[0] * x ** -p[1] + (p[2] if len(p) > 2 else 0.0)


def _gradient_at(x: np.ndarray, p: np.ndarray) -> np.ndarray:
    """Derivatives of the law by its parameters, ``[..., p]``."""
    power = x ** -p[1]
    columns = [power, -p[0] * power * np.log(x), np.ones_like(power)]
    return np.stack(columns[: len(p)], -1)


def _checked(x: object, y: object, form: str) -> tuple[np.ndarray, np.ndarray]:
    points, losses = np.asarray(x, dtype=np.float64), np.asarray(y, dtype=np.float64)
    least = len(FORMS[form])
    if losses.ndim != 1 or points.shape != losses.shape or losses.size < least:
        raise ConfigError(
            f"fit_power_law: {form!r} needs {least} points or more, x [n] and y [n], got "
            f"{list(points.shape)} and {list(losses.shape)}."
        )
    if not (np.isfinite(points).all() and np.isfinite(losses).all() and (points > 0).all()):
        raise ConfigError("fit_power_law: x and y must be finite and x positive, got others.")
    if form == "kaplan" and (losses <= 0).any():
        raise ConfigError(f"fit_power_law: {form!r} needs positive y, got {losses.min()}.")
    if len(np.unique(points)) < least:
        raise ConfigError(
            f"fit_power_law: {form!r} needs {least} different x, got {len(np.unique(points))}."
        )
    if np.ptp(losses) == 0:
        raise ConfigError(f"fit_power_law: y must vary, got {losses[0]} everywhere.")
    return points, losses


def _law(form: str, x: np.ndarray, y: np.ndarray, values: np.ndarray) -> PowerLaw:
    predicted, jacobian = _law_at(x, values), _gradient_at(x, values)  # [n], [n, p]
    residuals = y - predicted
    if form == "kaplan":  # fitted on the logarithm
        jacobian, residuals = jacobian / predicted[:, None], np.log(y) - np.log(predicted)
    covariance = None
    _, x_index, counts = np.unique(x, return_inverse=True, return_counts=True)
    free = len(counts) - len(values)
    if free > 0:
        misses = np.bincount(x_index, weights=residuals) / counts
        # The larger of two estimates: the means at each x may lie on the law by chance.
        variance = max(
            float(counts @ misses**2) / free, float(residuals @ residuals) / (len(y) - len(values))
        )
        # Columns differ by orders of magnitude; scaling keeps the digits of the inverse.
        scale = np.linalg.norm(jacobian, axis=0)
        inverse = np.linalg.pinv((jacobian / scale).T @ (jacobian / scale))
        covariance = inverse / np.outer(scale, scale) * variance
    return PowerLaw(
        form=form,
        parameters={name: float(v) for name, v in zip(FORMS[form], values, strict=True)},
        x=x,
        y=y,
        covariance=covariance,
        r2=1 - float(((y - predicted) ** 2).sum() / ((y - y.mean()) ** 2).sum()),
        max_error=float(np.abs(y - predicted).max()),
    )
