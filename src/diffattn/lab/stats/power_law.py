"""Power laws through measured losses, and the size or data at which two models are equal."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from diffattn.errors import ConfigError
from diffattn.lab.stats.intervals import LEVEL, Interval, Numbers, t_quantile

FORMS: dict[str, tuple[str, ...]] = {"offset": ("a", "b", "c"), "kaplan": ("a", "b")}
_EXPONENT_SPANS = np.geomspace(0.02, 60.0, 240)
"""Exponents to search, times ln(largest x / smallest x): from a line in ln x to a step."""


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class PowerLaw:
    """A fitted law and the points it was fitted to; see :func:`fit_power_law`."""

    parameters: dict[str, float]
    x: np.ndarray
    """Parameters or tokens of each point, float64 ``[n]``."""
    y: np.ndarray
    """Loss of each point, float64 ``[n]``."""
    covariance: np.ndarray | None
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

    def predict(self, x: Numbers | float) -> np.ndarray:
        """The loss of the law at ``x``, of any shape, also outside the data."""
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


def fit_power_law(x: Numbers, y: Numbers, *, form: str = "offset") -> PowerLaw:
    r"""Fit a power law to losses.

    .. math:: L = a x^{-b} + c, \qquad L = a x^{-b}

    ``"offset"`` is ordinary least squares on the loss. ``"kaplan"``, also written
    :math:`(x_c / x)^b` with :math:`x_c = a^{1 / b}`, is least squares on the logarithm.

    Points with equal x share the error of the law there. So degrees of freedom count different x.
    The variance of a point is the larger of two estimates: from the means at each x, and from all
    points.

    An offset law's exponent b is positive: it falls with x, or rises to c if a < 0.

    Source: arXiv:2410.05258v2, section 3.2 (offset: its plotted curves); arXiv:2001.08361,
    Eq. (1.1).

    Args:
        x: ``[n]``, positive. Any unit.
        y: ``[n]``, positive for ``"kaplan"``.

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
    Brent's method for the root of the derivative near the best grid point.

    Args:
        x: ``[n]``, positive, three different values or more.
        ys: ``[sets, n]``.

    Returns:
        a, b, c ``[sets, 3]``, and bool ``[sets]``: True if the points do not determine b.
    """
    from scipy.optimize import brentq

    middle = np.exp(np.log(x).mean())
    z = np.log(x / middle)
    grid = _EXPONENT_SPANS / np.ptp(z)
    centred = ys - ys.mean(-1, keepdims=True)
    u = _centred_power(z, grid[:, None])  # [grid, n]
    best = np.argmax((centred @ u.T) ** 2 / (u * u).sum(-1), axis=-1)
    at_edge = (best == 0) | (best == len(grid) - 1)
    b = grid[best]
    for i in np.flatnonzero(~at_edge):

        def slope(b: float, centred: np.ndarray = centred[i]) -> float:
            u = _centred_power(z, b)
            residuals = centred - u * (centred @ u) / (u @ u)
            return float(residuals @ (z * np.exp(-b * z)))

        low, high = grid[best[i] - 1], grid[best[i] + 1]
        # All steeper exponents may give the same sum of squares, as far as floats can tell.
        at_edge[i] = slope(low) * slope(high) > 0
        if not at_edge[i]:
            b[i] = brentq(slope, low, high)
    u = _centred_power(z, b[:, None])  # [sets, n]
    a = (centred * u).sum(-1) / (u * u).sum(-1)
    c = ys.mean(-1) - a * np.exp(-b[:, None] * z).mean(-1)
    return np.stack([a * middle**b, b, c], -1), at_edge


def _centred_power(z: np.ndarray, b: np.ndarray | float) -> np.ndarray:
    """exp(-b z) less its mean over the points; expm1 keeps its digits for small b."""
    u = np.expm1(-b * z)
    return u - u.mean(-1, keepdims=True)


def _law_at(x: np.ndarray, p: np.ndarray) -> np.ndarray:
    return p[0] * x ** -p[1] + (p[2] if len(p) > 2 else 0.0)


def _gradient_at(x: np.ndarray, p: np.ndarray) -> np.ndarray:
    """Derivatives of the law by its parameters, ``[..., p]``."""
    power = x ** -p[1]
    columns = [power, -p[0] * power * np.log(x), np.ones_like(power)]
    return np.stack(columns[: len(p)], -1)


def _checked(x: object, y: object, form: str) -> tuple[np.ndarray, np.ndarray]:
    points, losses = np.asarray(x, dtype=np.float64), np.asarray(y, dtype=np.float64)
    least, different = len(FORMS[form]), len(np.unique(points))
    if different < least:
        raise ConfigError(f"fit_power_law: {form!r} needs {least} different x, got {different}.")
    if not (points > 0).all() or (form == "kaplan" and not (losses > 0).all()):
        raise ConfigError("fit_power_law: x must be positive, and y for 'kaplan', got others.")
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
        parameters={name: float(v) for name, v in zip(FORMS[form], values, strict=True)},
        x=x,
        y=y,
        covariance=covariance,
        r2=1 - float(((y - predicted) ** 2).sum() / ((y - y.mean()) ** 2).sum()),
        max_error=float(np.abs(y - predicted).max()),
    )


Points = Sequence[tuple[float, float]]
"""Pairs, one per run: parameters or tokens, and the loss in nats per token."""


def fits_of(
    groups: Mapping[str, Points], *, form: str = "offset"
) -> tuple[dict[str, PowerLaw], dict[str, dict[str, Any]]]:
    """Fit a law of a form to every group of runs, and make a record of each. Losses must fall.

    Returns:
        Name -> law, without the groups that have no fit. And name -> record, a
        :class:`diffattn.lab.records.study_results.FitResult`.
    """
    laws, entries = {}, {}
    for name, points in groups.items():
        entry: dict[str, Any] = {"form": form, "points": len(points), "parameters": {}}
        entry |= {"r2": None, "max_error": None, "refused": None}
        try:
            law = fit_power_law([x for x, _ in points], [loss for _, loss in points], form=form)
            if law.parameters["a"] <= 0 or law.parameters["b"] <= 0:
                first, last = law.predict([law.x.min(), law.x.max()])
                raise ConfigError(
                    "fit_power_law: the losses must fall from the smallest x to the largest, got "
                    f"{first:.4g} and {last:.4g}."
                )
        except ConfigError as error:
            entries[name] = entry | {"refused": _reason(error)}
            continue
        laws[name] = law
        entries[name] = entry | {
            "parameters": {part: law.interval(part).recorded() for part in FORMS[form]},
            "r2": law.r2,
            "max_error": law.max_error,
        }
    return laws, entries


def drawn(parameters: Sequence[float], points: Points) -> PowerLaw:
    """A law with known a, b and c, for example from a plotted curve; it has no intervals."""
    x, y = (np.array(values, dtype=np.float64) for values in zip(*points, strict=True))
    return replace(_law("offset", x, y, np.array(parameters)), covariance=None)


def equivalent(
    x: float, fit_a: PowerLaw, fit_b: PowerLaw, *, extrapolate: bool = False
) -> dict[str, Any]:
    r"""Find where the second law reaches the loss that the first has at ``x``.

    .. math:: x_b = ((L_a(x) - c_b) / a_b)^{-1 / b_b}

    Source: arXiv:2410.05258v2, section 3.2.

    Args:
        x: Parameters or tokens, in the unit of both fits.
        extrapolate: Allow x and x_b outside the points, where only the form of a law decides.

    Returns:
        ``other_x``, the ``loss``, and the ``ratio`` of x and x_b: at 0.62 the first model needs
        62 % of the second's parameters or tokens.

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
    low = high = None
    first, second = fit_a.spread_at(x), fit_b.spread_at(other)
    if first is not None and second is not None:
        # Delta method for log(x / other): an error dL of either loss moves other by dL / L_b'.
        a, b = fit_b.parameters["a"], fit_b.parameters["b"]
        slope = -a * b * other ** (-b) / other
        spread = float(np.hypot(first, second)) / abs(slope * other)
        fewest = min(fit_a.degrees_of_freedom, fit_b.degrees_of_freedom)
        half = min(t_quantile((1 + LEVEL) / 2, fewest) * spread, 700.0)  # exp stays finite
        low, high = (float(x / other * np.exp(sign * half)) for sign in (-1, 1))
    ends = {"ratio": x / other, "low": low, "high": high, "level": LEVEL}
    return {"other_x": other, "loss": loss, **ends, "extrapolated": bool(outside)}


def _inverse(fit: PowerLaw, loss: float) -> float:
    a, b, c = fit.parameters["a"], fit.parameters["b"], fit.parameters.get("c", 0.0)
    with np.errstate(over="ignore", under="ignore", divide="ignore", invalid="ignore"):
        x = float(np.power((loss - c) / a, -1 / b))
    if not 0 < x < np.inf:
        raise ConfigError(
            f"equivalent: the second law must reach the loss {loss:.4g} of the first, got a law "
            f"that ends at {c:.4g} or is nearly flat."
        )
    return x


def equivalence_of(
    x: float, name: str, baseline: str, laws: Mapping[str, PowerLaw], *, extrapolate: bool = False
) -> dict[str, Any]:
    """Record where ``baseline`` reaches the loss that ``name`` has at ``x``.

    It is a :class:`diffattn.lab.records.study_results.Equivalent`; see :func:`equivalent`.
    """
    entry: dict[str, Any] = {"type": name, "baseline": baseline, "x": x}
    entry |= dict.fromkeys(("other_x", "loss", "ratio", "low", "high", "level"))
    entry |= {"extrapolated": False, "refused": None}
    for side in (name, baseline):
        if side not in laws:
            return entry | {"refused": f"{side} has no fit"}
    try:
        return entry | equivalent(x, laws[name], laws[baseline], extrapolate=extrapolate)
    except ConfigError as error:
        return entry | {"refused": _reason(error)}


def equivalent_at(axis: Mapping[str, Any], name: str, baseline: str) -> Any:
    """The record of a pair at ``axis["read_at"]``, the point that is reported."""
    key, rows = (name, baseline, axis["read_at"]), axis["equivalents"]
    return next((x for x in rows if (x["type"], x["baseline"], x.get("point")) == key), None)


def _reason(error: ConfigError) -> str:
    return str(error).partition(": ")[2].rstrip(".")  # without the function that raised it
