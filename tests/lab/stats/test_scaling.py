"""Fits of several models: what is said, and what is refused."""

import numpy as np
import pytest

from diffattn.lab.report.paper import scaling_curves
from diffattn.lab.stats.power_law import drawn, equivalence_of, fits_of

X = np.geomspace(1e5, 1.6e6, 5)


def points(a, b, c):
    return [(x, a * x**-b + c) for x in X]


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


def test_what_has_no_law_is_said():
    straight = [(x, 5 - 0.1 * np.log(x / X[0])) for x in X]
    laws, entries = fits_of({"base": points(40, 0.4, 3.0), "line": straight})
    assert list(laws) == ["base"]
    assert "bend like a power law" in entries["line"]["refused"]
    assert entries["line"]["parameters"] == {}
    assert equivalence_of(X[0], "line", "base", laws)["refused"] == "line has no fit"
    _, rising = fits_of({"offset": points(-40, 0.4, 5.0)})
    _, too = fits_of({"kaplan": [(x, x**0.1) for x in X]}, form="kaplan")
    assert all("must fall" in entry["refused"] for entry in (rising | too).values())
