"""Power laws through the losses of several models, and the size or data at which they are equal."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from diffattn.errors import ConfigError
from diffattn.lab.stats.intervals import LEVEL, t_quantile
from diffattn.lab.stats.power_law import FORMS, PowerLaw, fit_power_law

Points = Sequence[tuple[float, float]]
"""Pairs, one per run: parameters or tokens, and the loss in nats per token."""


def fit_falling(points: Points, *, form: str = "offset") -> PowerLaw:
    """Fit a law to a model's losses, one pair per run; refuse losses that rise."""
    law = fit_power_law([x for x, _ in points], [loss for _, loss in points], form=form)
    if law.parameters["a"] <= 0 or law.parameters["b"] <= 0:
        raise ConfigError(
            "fit_power_law: the losses must fall from the smallest x to the largest, got "
            f"{float(law.predict(law.x.min())):.4g} and {float(law.predict(law.x.max())):.4g}."
        )
    return law


def fits_of(
    groups: Mapping[str, Points], *, form: str = "offset"
) -> tuple[dict[str, PowerLaw], dict[str, dict[str, Any]]]:
    """Fit a law of a form to every group of runs, and make a record of each.

    Returns:
        Name -> law, without the groups that have no fit. And name -> record, a
        :class:`diffattn.lab.records.study_results.FitResult`.
    """
    laws, entries = {}, {}
    for name, points in groups.items():
        entry: dict[str, Any] = {"form": form, "points": len(points), "parameters": {}}
        entry |= {"r2": None, "max_error": None, "refused": None}
        try:
            law = fit_falling(points, form=form)
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
    a, b, c = parameters
    residuals = y - (a * x**-b + c)
    return PowerLaw(
        form="offset",
        parameters={"a": a, "b": b, "c": c},
        x=x,
        y=y,
        covariance=None,
        r2=1 - float((residuals**2).sum() / ((y - y.mean()) ** 2).sum()),
        max_error=float(np.abs(residuals).max()),
    )


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
        ``other_x`` and the ``loss``; ``ratio`` of x and x_b with ``low``, ``high`` and ``level``
        (at 0.62 the first model needs 62 % of the second's parameters or tokens); and whether it is
        ``extrapolated``.

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
    """The record of a pair at ``axis["read_at"]``, the point that is reported; ``None`` if none."""
    key = (name, baseline, axis["read_at"])
    rows = axis["equivalents"]
    return next((x for x in rows if (x["type"], x["baseline"], x.get("point")) == key), None)


def _reason(error: ConfigError) -> str:
    return str(error).partition(": ")[2].rstrip(".")  # without the function that raised it
