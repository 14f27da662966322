"""Quantiles and intervals against published tables and exact forms."""

import math

import pytest

from diffattn.errors import ConfigError
from diffattn.lab.stats.intervals import mean_interval, median_interval


def test_mean_interval_of_three_values():
    interval = mean_interval([1.0, 2.0, 3.0])
    half = 0.95 * math.sqrt(2 / 0.0975) / math.sqrt(3)  # the quantile at df = 2 in closed form
    assert interval.mean == 2.0
    # scipy before 1.17 has the quantile to 1e-10 of its size.
    assert interval.low == pytest.approx(2 - half, abs=1e-10 * half)
    assert interval.high == pytest.approx(2 + half, abs=1e-10 * half)
    assert (interval.level, interval.n, interval.method) == (0.95, 3, "Student t")


def test_one_value_has_no_interval_and_equal_values_no_width():
    interval = mean_interval([2.5])
    assert (interval.mean, interval.low, interval.high) == (2.5, None, None)
    assert interval.method == "none: one value"
    interval = mean_interval([2.5, 2.5])
    assert interval.low == interval.high == 2.5


@pytest.mark.parametrize("interval", [mean_interval, median_interval])
@pytest.mark.parametrize("values", [[], [[1.0, 2.0]], 1.0, [1.0, math.nan], [math.inf, 1.0]])
def test_bad_values_are_refused(interval, values):
    with pytest.raises(ConfigError, match=f"{interval.__name__}: values must be"):
        interval(values)


@pytest.mark.parametrize(
    ("n", "rank"),
    # H. A. David and H. N. Nagaraja, Order Statistics: ranks of 95 % intervals of a median.
    [(5, None), (6, 1), (8, 1), (9, 2), (11, 2), (12, 3), (15, 4), (20, 6)],
)
def test_median_interval_is_between_two_values(n, rank):
    values = [float(10 * i) for i in range(n, 0, -1)]
    interval = median_interval(values)
    ends = (None, None) if rank is None else (10.0 * rank, 10.0 * (n + 1 - rank))
    assert (interval.mean, interval.low, interval.high) == (5.0 * (n + 1), *ends)
    assert interval.method == "sign test"
