"""Power laws through measured losses, with intervals of their parameters."""

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from diffattn.errors import ConfigError
from diffattn.stats import curve_fits
from diffattn.stats.intervals import Interval, t_quantile

FORMS: dict[str, tuple[str, ...]] = {
    "offset": ("a", "b", "c"),
    "kaplan": ("a", "b"),
    "chinchilla": ("E", "A", "alpha", "B", "beta"),
}


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class PowerLaw:
    """A fitted law and the points it was fitted to; see :func:`fit_power_law`."""

    form: str
    parameters: dict[str, float]
    x: np.ndarray = field(repr=False)
    """float64 ``[n]``, or ``[n, 2]`` for ``"chinchilla"``."""
    y: np.ndarray = field(repr=False)
    """float64 ``[n]``."""
    covariance: np.ndarray | None = field(repr=False)
    """``[p, p]`` of the parameters by the delta method; ``None`` with no more points than
    parameters."""
    r2: float
    """Share of the variance of y explained."""
    max_error: float
    """Largest ``|y - predict(x)|``."""

    @property
    def values(self) -> np.ndarray:
        """The parameters ``[p]`` in the order of ``FORMS``."""
        return np.array([self.parameters[name] for name in FORMS[self.form]])

    @property
    def degrees_of_freedom(self) -> int:
        """Points minus parameters."""
        return len(self.y) - len(self.parameters)

    def predict(self, x: Sequence[float] | np.ndarray | float) -> np.ndarray:
        """The law at ``x``, inside the data or not.

        Args:
            x: ``[...]``, or ``[..., 2]`` for ``"chinchilla"``; positive.
        """
        return curve_fits.MODELS[self.form](np.asarray(x, dtype=np.float64), self.values)

    def spread(self, gradient: np.ndarray) -> float | None:
        """Standard error of a quantity with this gradient ``[p]`` by the parameters.

        ``None`` with no more points than parameters.
        """
        if self.covariance is None:
            return None
        return float(np.sqrt(max(0.0, gradient @ self.covariance @ gradient)))

    def interval(self, name: str, level: float = 0.95) -> Interval:
        """Student-t interval of one parameter, by the delta method."""
        which = np.array([float(own == name) for own in FORMS[self.form]])
        return _interval(self, self.parameters[name], which, level)

    def interval_at(self, x: Sequence[float] | float, level: float = 0.95) -> Interval:
        """Student-t interval of the law at one ``x``, by the delta method."""
        point = np.asarray(x, dtype=np.float64)
        gradient = curve_fits.GRADIENTS[self.form](point, self.values)
        return _interval(self, float(self.predict(point)), gradient, level)


def fit_power_law(
    x: Sequence[float] | np.ndarray, y: Sequence[float] | np.ndarray, *, form: str = "offset"
) -> PowerLaw:
    r"""Fit a power law to losses.

    .. math:: L = a x^{-b} + c, \qquad L = a x^{-b}, \qquad L = E + A N^{-\alpha} + B D^{-\beta}

    ``"offset"`` is ordinary least squares on the loss: a and c are linear given b, so b alone is
    searched, on a grid and then by Gauss–Newton steps on all three. ``"kaplan"``, also written
    :math:`(x_c / x)^b` with :math:`x_c = a^{1 / b}`, is least squares on the logarithm.
    ``"chinchilla"`` minimises the Huber loss (δ = 1e-3) of the logarithm from a grid of starts.

    Source: arXiv:2410.05258v2, section 3.2 (offset: its plotted curves); arXiv:2001.08361,
    Eq. (1.1); arXiv:2203.15556, section D.2.

    Args:
        x: ``[n]``, positive; ``[n, 2]`` for ``"chinchilla"`` (parameters, tokens). Any unit.
        y: ``[n]``, positive for the last two forms.
        form: ``"offset"``, ``"kaplan"`` or ``"chinchilla"``.

    Returns:
        The law. Its exponent is positive: it falls with x, or rises towards c for a < 0.

    Raises:
        ConfigError: The points are too few or out of range, or do not bend like a power law, so
            that no exponent fits them best.
    """
    if form not in FORMS:
        raise ConfigError(f"fit_power_law: form must be in {{{', '.join(FORMS)}}}, got {form!r}.")
    points, losses = _checked(x, y, form)
    if form == "chinchilla":
        theta = curve_fits.fit_chinchilla(np.log(points), np.log(losses))
        values = curve_fits.chinchilla_parameters(theta)
    elif form == "kaplan":
        slope, intercept = np.polyfit(np.log(points), np.log(losses), 1)
        values = np.array([np.exp(intercept), -slope])
    else:
        found, at_edge = curve_fits.fit_offset(points, losses[None])
        if at_edge[0]:
            raise ConfigError(
                "fit_power_law: the points must bend like a power law, got a best exponent at "
                f"the edge of what is searched ({found[0][1]:.3g})."
            )
        values = found[0]
    return _law(form, points, losses, values)


def bootstrap_power_law(
    fit: PowerLaw, *, level: float = 0.95, repeats: int = 1_000, seed: int = 0
) -> dict[str, Interval]:
    """Percentile intervals of the parameters from resampled residuals, x held fixed.

    Residuals are widened by ``sqrt(n / (n - p))``, since a fit makes them too small. They are
    taken on the scale that was fitted: the loss, or its logarithm. An exponent that leaves the
    searched range counts with the edge.

    Source: B. Efron, R. Tibshirani, An Introduction to the Bootstrap (1993), section 9.4.

    Args:
        fit: A fit with more points than parameters.
        level: Coverage, in (0, 1). Default 0.95.
        repeats: Resamples.
        seed: Of the resampling.

    Returns:
        An interval by parameter.

    Raises:
        ConfigError: The fit has no residuals, or ``level`` or ``repeats`` is out of range.
    """
    if fit.degrees_of_freedom < 1 or not 0 < level < 1 or repeats < 1:
        raise ConfigError(
            "bootstrap_power_law: the fit must have more points than parameters, level lie in "
            f"(0, 1) and repeats be 1 or more, got {len(fit.y)} points, {level}, {repeats}."
        )
    n = len(fit.y)
    logs = fit.form != "offset"
    fitted = np.log(fit.predict(fit.x)) if logs else fit.predict(fit.x)
    residuals = (np.log(fit.y) if logs else fit.y) - fitted
    residuals = residuals * np.sqrt(n / fit.degrees_of_freedom)
    drawn = np.random.default_rng(seed).integers(0, n, size=(repeats, n))
    resampled = fitted + residuals[drawn]  # [repeats, n]
    if fit.form == "offset":
        found, _ = curve_fits.fit_offset(fit.x, resampled)
    elif fit.form == "kaplan":
        slope, intercept = np.polyfit(np.log(fit.x), resampled.T, 1)
        found = np.stack([np.exp(intercept), -slope], -1)
    else:
        start = curve_fits.chinchilla_theta(fit.values)
        theta = curve_fits.refit_chinchilla(np.log(fit.x), resampled, start)
        found = curve_fits.chinchilla_parameters(theta)
    low, high = np.quantile(found, [(1 - level) / 2, (1 + level) / 2], axis=0)
    return {
        name: Interval(
            fit.parameters[name], float(low[i]), float(high[i]), level, n, "residual bootstrap"
        )
        for i, name in enumerate(FORMS[fit.form])
    }


def _checked(x: object, y: object, form: str) -> tuple[np.ndarray, np.ndarray]:
    """Points and losses as float64, fit to be fitted."""
    points, losses = np.asarray(x, dtype=np.float64), np.asarray(y, dtype=np.float64)
    least = len(FORMS[form])
    shape = (losses.size, 2) if form == "chinchilla" else (losses.size,)
    if losses.ndim != 1 or points.shape != shape or losses.size < least:
        raise ConfigError(
            f"fit_power_law: {form!r} needs {least} points or more, x "
            f"{'[n, 2]' if form == 'chinchilla' else '[n]'} and y [n], got "
            f"{list(points.shape)} and {list(losses.shape)}."
        )
    if not (np.isfinite(points).all() and np.isfinite(losses).all() and (points > 0).all()):
        raise ConfigError("fit_power_law: x and y must be finite and x positive, got others.")
    if form != "offset" and (losses <= 0).any():
        raise ConfigError(f"fit_power_law: {form!r} needs positive y, got {losses.min()}.")
    if form != "chinchilla" and len(np.unique(points)) < least:
        raise ConfigError(
            f"fit_power_law: {form!r} needs {least} different x, got {len(np.unique(points))}."
        )
    if np.ptp(losses) == 0:
        raise ConfigError(f"fit_power_law: y must vary, got {losses[0]} everywhere.")
    return points, losses


def _law(form: str, x: np.ndarray, y: np.ndarray, values: np.ndarray) -> PowerLaw:
    """The law with its spread and how well it fits."""
    predicted = curve_fits.MODELS[form](x, values)
    jacobian = curve_fits.GRADIENTS[form](x, values)  # [n, p]
    residuals = y - predicted
    if form != "offset":  # fitted on the logarithm
        jacobian, residuals = jacobian / predicted[:, None], np.log(y) - np.log(predicted)
    free, covariance = len(y) - len(values), None
    if free > 0:
        # Columns differ by orders of magnitude: scaled first, the inverse keeps its digits.
        scale = np.linalg.norm(jacobian, axis=0)
        inverse = np.linalg.pinv((jacobian / scale).T @ (jacobian / scale))
        covariance = inverse / np.outer(scale, scale) * float(residuals @ residuals) / free
    return PowerLaw(
        form=form,
        parameters={name: float(v) for name, v in zip(FORMS[form], values, strict=True)},
        x=x, y=y, covariance=covariance,
        r2=1 - float(((y - predicted) ** 2).sum() / ((y - y.mean()) ** 2).sum()),
        max_error=float(np.abs(y - predicted).max()),
    )  # fmt: skip


def _interval(fit: PowerLaw, value: float, gradient: np.ndarray, level: float) -> Interval:
    if not 0 < level < 1:
        raise ConfigError(f"PowerLaw: level must be in (0, 1), got {level}.")
    spread, n = fit.spread(gradient), len(fit.y)
    if spread is None:
        return Interval(value, None, None, level, n, "none: no more points than parameters")
    half = t_quantile((1 + level) / 2, fit.degrees_of_freedom) * spread
    return Interval(value, value - half, value + half, level, n, "delta method")
