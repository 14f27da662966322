"""Power laws: the published scaling fit, exact recovery, intervals, equivalent sizes."""

import numpy as np
import pytest
from scipy.optimize import least_squares

from diffattn.errors import ConfigError
from diffattn.lab.report.paper import scaling_curves
from diffattn.lab.stats.intervals import t_quantile
from diffattn.lab.stats.power_law import equivalent, fit_offset, fit_power_law

# Fig. 3 of arXiv:2410.05258v2: points, and a, b, c of its curves.
CURVES = scaling_curves()
PUBLISHED = {
    (axis, kind): (curves.losses[kind], tuple(curves.curves[kind]))
    for axis, curves in CURVES.items()
    for kind in ("softmax", "diff")
}


def published(axis, kind):
    return fit_power_law(CURVES[axis].x, PUBLISHED[axis, kind][0])


@pytest.mark.parametrize(("axis", "kind"), list(PUBLISHED))
def test_the_published_curves_follow_from_the_plotted_points(axis, kind):
    fit = published(axis, kind)
    _, (a, b, c) = PUBLISHED[axis, kind]
    # Points are known to half a unit of the third decimal; its effect on a parameter is at most
    # the sum of the absolute entries of the linearised solution.
    x = fit.x
    jacobian = np.stack([x**-b, -a * x**-b * np.log(x), np.ones_like(x)], -1)
    solution = np.linalg.pinv(jacobian)
    bounds = 0.0005 * np.abs(solution).sum(-1)
    assert np.all(np.abs(fit.values - (a, b, c)) < bounds)
    printed = np.array([5e-4 if a > 1 else 5e-5, 5e-5, 5e-5])  # half a unit of a, b, c
    bounds = 0.0005 * np.abs(jacobian @ solution).sum(-1) + np.abs(jacobian) @ printed
    assert np.all(np.abs(fit.predict(x) - (a * x**-b + c)) < bounds)


@pytest.mark.parametrize("parameters", [(2.0, 0.1, 1.0), (-3.0, 1.5, 4.0), (1e4, 0.9, 2.5)])
def test_exact_points_give_back_the_parameters(parameters):
    a, b, c = parameters
    x = np.geomspace(10, 1e5, 30)
    fit = fit_power_law(x, a * x**-b + c)
    np.testing.assert_allclose(fit.values, parameters, rtol=1e-8)
    assert fit.r2 == pytest.approx(1)
    pure = fit_power_law(x, 5 * x**-0.1, form="kaplan")
    np.testing.assert_allclose(pure.values, (5, 0.1), rtol=1e-10)


def test_many_curves_are_fitted_as_each_alone():
    x = np.geomspace(128, 65_536, 40)
    curves = 5 * x**-0.2 + 2 + np.random.default_rng(0).normal(0, 0.02, (20, 40))
    values, at_edge = fit_offset(x, curves)
    assert not at_edge.any()
    for curve, fitted in zip(curves, values, strict=True):
        np.testing.assert_array_equal(fit_power_law(x, curve).values, fitted)


def test_no_other_law_is_closer_where_scipy_searches_all_three():
    """Noise as large as the bend: plain steps from a close start ran away on some such curves."""
    generator = np.random.default_rng(0)
    for _ in range(50):
        x = np.sort(10 ** generator.uniform(2, 5, size=8))
        curve = 3 * (x / 1e3) ** -0.5 + 2 + generator.normal(0, 1.0, 8)
        values, at_edge = fit_offset(x, curve[None])
        if at_edge[0]:
            continue
        u, (a, b, c) = x / 1e3, values[0]
        start = (a * 1e3**-b, b, c)
        other = least_squares(lambda p, u=u, y=curve: p[0] * u ** -p[1] + p[2] - y, start)
        assert np.sum((a * x**-b + c - curve) ** 2) <= 2 * other.cost * (1 + 1e-9)


def test_the_delta_method_covers_the_truth():
    x = np.geomspace(1, 100, 12)
    generator = np.random.default_rng(0)
    hits = {"delta": 0, "at": 0}
    t = t_quantile(0.975, 12 - 3)
    for _ in range(200):
        fit = fit_power_law(x, 2 * x**-0.5 + 3 + generator.normal(0, 0.01, 12))
        exponent, error = fit.interval("b"), float(fit.predict(10.0)) - (2 * 10**-0.5 + 3)
        hits["delta"] += exponent.low <= 0.5 <= exponent.high
        hits["at"] += abs(error) <= t * fit.spread_at(10.0)
    # 95 % of 200 within three standard errors (3.1 each).
    assert 181 <= hits["delta"] <= 199
    assert 181 <= hits["at"] <= 199


@pytest.mark.parametrize("form", ["offset", "kaplan"])
def test_more_seeds_of_a_size_say_nothing_of_what_the_law_misses_there(form):
    x, y = np.array(CURVES["parameters"].x), np.array(PUBLISHED["parameters", "diff"][0])
    once, often = (fit_power_law(np.tile(x, n), np.tile(y, n), form=form) for n in (1, 5))
    assert often.degrees_of_freedom == once.degrees_of_freedom
    np.testing.assert_allclose(often.values, once.values, rtol=1e-6)
    for name in once.parameters:
        actual, other = often.interval(name), once.interval(name)
        np.testing.assert_allclose((actual.low, actual.high), (other.low, other.high), rtol=1e-4)


def test_seeds_that_differ_count_by_their_mean():
    """By hand: the law is linear in ln x, so its slope's error is the textbook's of the means."""
    x, seeds = np.repeat([1.0, 2.0, 4.0, 8.0], 2), np.tile([-0.01, 0.01], 4)
    means = np.array([1.0, 0.75, 0.45, 0.3])
    law = fit_power_law(x, np.exp(np.repeat(np.log(means), 2) + seeds), form="kaplan")
    z = np.log([1.0, 2.0, 4.0, 8.0])
    slope, intercept = np.polyfit(z, np.log(means), 1)
    misses = np.log(means) - slope * z - intercept
    error = np.sqrt(np.sum(misses**2) / 2 / np.sum((z - z.mean()) ** 2))
    results = law.interval("b")
    assert results.mean == pytest.approx(-slope)
    assert results.high - results.mean == pytest.approx(t_quantile(0.975, 2) * error)


def test_means_that_lie_on_the_law_by_chance_do_not_make_it_certain():
    x, off = np.repeat([1.0, 2.0, 4.0, 8.0], 2), np.tile([-0.01, 0.01], 4)
    law = fit_power_law(x, 2 * x**-0.5 + 1 + off)
    once = fit_power_law(x[::2], (2 * x**-0.5 + 1)[::2])
    assert once.interval("b").high - once.interval("b").low < 1e-6
    z = np.stack([x**-0.5, -2 * x**-0.5 * np.log(x), np.ones(8)], -1)
    error = np.sqrt(np.linalg.inv(z.T @ z)[1, 1] * 8e-4 / (8 - 3))
    half = law.interval("b").high - law.parameters["b"]
    assert half == pytest.approx(t_quantile(0.975, 4 - 3) * error, rel=1e-6)


def test_three_points_have_no_interval():
    fit = fit_power_law([1, 2, 4], [3.0, 2.0, 1.5])
    assert fit.interval("b").low is None
    assert equivalent(2, fit, fit)["low"] is None


def test_extrapolation_is_refused_unless_asked_for():
    diff, softmax = published("parameters", "diff"), published("parameters", "softmax")
    with pytest.raises(ConfigError, match=r"got 20 \(points from 0.83 to 13.1\)"):
        equivalent(20, diff, softmax)
    with pytest.raises(ConfigError, match=r"got 18\.\d+ \(points"):
        equivalent(10, diff, softmax)
    assert equivalent(10, diff, softmax, extrapolate=True)["extrapolated"]
    assert not equivalent(6.8, diff, softmax)["extrapolated"]
    with pytest.raises(ConfigError, match="or is nearly flat"):
        equivalent(1e6, diff, softmax, extrapolate=True)
    flat = fit_power_law([1, 2, 4], [3.00000001, 3.0, 2.99999999], form="kaplan")
    steep = fit_power_law([1, 2, 4], [3.0, 2.0, 1.5], form="kaplan")
    with pytest.raises(ConfigError, match="or is nearly flat"):
        equivalent(4, steep, flat, extrapolate=True)


@pytest.mark.parametrize(
    ("x", "y", "form", "message"),
    [
        ([1, 2], [2, 1], "offset", "3 different x"),
        ([1, 2, 2], [3, 2, 1], "offset", "3 different x"),
        ([0, 1, 2], [3, 2, 1], "offset", "x must be positive"),
        ([1, 2, 3], [2, 2, 2], "offset", "must vary"),
        ([1, 2, 3], [2, 1, -1], "kaplan", "x must be positive, and y"),
        ([1e7, 1e8, 3e8], [3.0, 2.5, 2.52], "offset", "bend like a power law"),
    ],
)
def test_points_without_a_law_are_refused(x, y, form, message):
    with pytest.raises(ConfigError, match=message):
        fit_power_law(x, y, form=form)
