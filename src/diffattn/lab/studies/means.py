"""Means and intervals as ``results.json`` holds them."""

from collections.abc import Sequence

from diffattn.lab.records.text_results import Mean, MeanInterval
from diffattn.lab.stats.intervals import Interval, mean_interval


def recorded_interval(interval: Interval) -> MeanInterval:
    """The mean and the ends of an interval."""
    return {
        "mean": interval.mean,
        "low": interval.low,
        "high": interval.high,
        "level": interval.level,
    }


def mean_of_seeds(values: Sequence[float]) -> Mean:
    """One value per seed, with their mean and its interval."""
    interval = mean_interval(values)
    return {"values": list(values), **recorded_interval(interval), "n": interval.n}
