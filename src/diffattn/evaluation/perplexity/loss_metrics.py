"""Losses and perplexities as metrics: lower is better, with the interval they came with."""

import math
from typing import Any

from diffattn.records.evaluations import Metric
from diffattn.stats.intervals import Interval


def loss_metric(
    name: str,
    interval: Interval,
    where: dict[str, Any] | None = None,
    *,
    headline: bool = False,
    unit: str = "nats per token",
) -> Metric:
    """A mean loss and its interval."""
    return Metric(
        name=name,
        value=interval.mean,
        low=interval.low,
        high=interval.high,
        n=interval.n,
        level=interval.level,
        method=interval.method,
        unit=unit,
        where=where or {},
        headline=headline,
        higher_is_better=False,
    )


def perplexity_metric(name: str, interval: Interval, where: dict[str, Any] | None = None) -> Metric:
    """exp of a mean loss in nats, as the number to be printed; the ends of its interval likewise.

    A loss above 700 nats, of which the exponential is no number, counts as 700.
    """
    ends = (interval.mean, interval.low, interval.high)
    mean, low, high = (None if one is None else math.exp(min(one, 700.0)) for one in ends)
    assert mean is not None
    method = interval.method if low is None else f"exp of the loss's: {interval.method}"
    own = Interval(mean, low, high, interval.level, interval.n, method)
    return loss_metric(name, own, where, headline=True, unit="perplexity")
