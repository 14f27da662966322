"""Power laws through the losses of several models, and the size or data at which they are equal."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from diffattn.errors import ConfigError
from diffattn.lab.stats.equivalence import equivalent
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
    """Fit a law to every group, and make a record of each.

    Args:
        groups: Name -> one pair per run.
        form: See :func:`diffattn.lab.stats.power_law.fit_power_law`.

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


def equivalence_of(
    x: float, name: str, baseline: str, laws: Mapping[str, PowerLaw], *, extrapolate: bool = False
) -> dict[str, Any]:
    """Record where ``baseline`` reaches the loss that ``name`` has at ``x`` parameters or tokens.

    Args:
        laws: From :func:`fits_of`.
        extrapolate: Allow x and its equivalent outside the points of their fits.

    Returns:
        A :class:`diffattn.lab.records.study_results.Equivalent`.
    """
    entry: dict[str, Any] = {"type": name, "baseline": baseline, "x": x}
    entry |= dict.fromkeys(("other_x", "loss", "ratio", "low", "high", "level"))
    entry |= {"extrapolated": False, "refused": None}
    for side in (name, baseline):
        if side not in laws:
            return entry | {"refused": f"{side} has no fit"}
    try:
        result = equivalent(x, laws[name], laws[baseline], extrapolate=extrapolate)
    except ConfigError as error:
        return entry | {"refused": _reason(error)}
    ends = result.ratio.recorded()
    return entry | {
        "other_x": result.other_x,
        "loss": result.loss,
        "ratio": ends.pop("mean"),
        **ends,
        "extrapolated": result.extrapolated,
    }


def equivalent_at(axis: Mapping[str, Any], name: str, baseline: str) -> Any:
    """The record of a pair at ``axis["read_at"]``, the point that is reported; ``None`` if none."""
    key = (name, baseline, axis["read_at"])
    rows = axis["equivalents"]
    return next((x for x in rows if (x["type"], x["baseline"], x.get("point")) == key), None)


def _reason(error: ConfigError) -> str:
    """The message of an error without the function that raised it."""
    return str(error).partition(": ")[2].rstrip(".")
