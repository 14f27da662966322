"""Means and intervals as ``results.json`` holds them."""

from collections.abc import Sequence
from typing import cast

from diffattn.lab.records.text_results import Mean
from diffattn.lab.stats.intervals import mean_interval


def mean_of_seeds(values: Sequence[float]) -> Mean:
    """The record of one value per seed: values, mean, interval and number."""
    interval = mean_interval(values).recorded()
    return cast(Mean, {"values": list(values), **interval, "n": len(values)})
