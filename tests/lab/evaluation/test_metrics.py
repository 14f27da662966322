"""Perplexities with their intervals."""

import math

import pytest

from diffattn.lab.evaluation.metrics import perplexity_metric
from diffattn.lab.stats.intervals import Interval

INTERVAL = Interval(mean=2.0, low=1.0, high=3.0, level=0.9, n=7, method="by hand")


def test_a_perplexity_is_the_exponential_of_all_three():
    result = perplexity_metric("perplexity", INTERVAL)
    assert [math.log(x) for x in (result.value, result.low, result.high)] == pytest.approx(
        [2, 1, 3]
    )
    assert (result.level, result.n) == (0.9, 7)
    assert result.method == "exp of the loss's: by hand"
    assert result.higher_is_better is False
    unknown = perplexity_metric("perplexity", Interval(800.0, None, None, 0.95, 1, "none"))
    assert (unknown.value, unknown.low, unknown.high) == (math.exp(700), None, None)
