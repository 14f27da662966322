"""Fits of several models: what is said, and what is refused."""

import numpy as np
import pytest

from diffattn.errors import ConfigError
from diffattn.lab.report.paper import scaling_curves
from diffattn.lab.stats.scaling import drawn, equivalence_of, fit_falling, fits_of

X = np.geomspace(1e5, 1.6e6, 5)


def points(a, b, c, seeds=(0.0,)):
    return [(x, a * x**-b + c + off) for x in X for off in seeds]


@pytest.mark.parametrize(
    ("axis", "x", "percent"),
    [("parameters", 6.8, 62.3), ("parameters", 7.8, 59.5), ("tokens", 160, 63.7)],
)
def test_the_published_ratios_follow_from_points_and_from_curves(axis, x, percent):
    curves = scaling_curves()[axis]
    assert x in curves.read_at
    groups = curves.points()
    plotted = {name: drawn(curves.curves[name], groups[name]) for name in groups}
    by_curves = equivalence_of(x, "diff", "softmax", plotted, extrapolate=True)
    assert round(100 * by_curves["ratio"], 1) == percent
    assert by_curves["low"] is None
    fitted = equivalence_of(x, "diff", "softmax", fits_of(groups)[0], extrapolate=True)
    assert 100 * fitted["ratio"] == pytest.approx(percent, abs=0.11)  # points have three decimals
    assert fitted["low"] < fitted["ratio"] < fitted["high"]


def test_known_laws_give_back_the_share():
    """The second needs 0.8 of what the first needs, at every loss."""
    noise = (-1e-4, 1e-4)
    groups = {"base": points(40, 0.4, 3.0, noise), "less": points(40 * 0.8**0.4, 0.4, 3.0, noise)}
    laws, entries = fits_of(groups)
    row = equivalence_of(X[2], "less", "base", laws)
    assert row["ratio"] == pytest.approx(0.8, rel=1e-3)
    assert row["low"] < 0.8 < row["high"]
    assert (row["refused"], row["extrapolated"]) == (None, False)
    entry = entries["less"]
    assert (entry["points"], entry["refused"]) == (10, None)
    assert entry["parameters"]["b"]["low"] < 0.4 < entry["parameters"]["b"]["high"]


def test_what_has_no_law_or_lies_outside_is_said():
    straight = [(x, 5 - 0.1 * np.log(x / X[0])) for x in X]
    laws, entries = fits_of({"base": points(40, 0.4, 3.0), "line": straight})
    assert list(laws) == ["base"]
    assert "bend like a power law" in entries["line"]["refused"]
    assert entries["line"]["parameters"] == {}
    assert equivalence_of(X[0], "line", "base", laws)["refused"] == "line has no fit"
    laws = {"base": laws["base"], "less": fit_falling(points(40 * 0.8**0.4, 0.4, 3.0))}
    outside = equivalence_of(X[-1], "less", "base", laws)
    assert outside["refused"].startswith("both x must lie within the points")
    assert outside["ratio"] is None
    asked = equivalence_of(X[-1], "less", "base", laws, extrapolate=True)
    assert asked["extrapolated"]
    assert asked["ratio"] == pytest.approx(0.8, rel=1e-6)
    with pytest.raises(ConfigError, match="must fall"):
        fit_falling(points(-40, 0.4, 5.0))
    with pytest.raises(ConfigError, match="must fall"):
        fit_falling([(x, x**0.1) for x in X], form="kaplan")
