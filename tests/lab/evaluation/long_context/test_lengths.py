"""Lengths that fit, means over tasks, effective length."""

import random

import pytest

from diffattn.errors import ConfigError
from diffattn.lab.evaluation.long_context.lengths import most_that_fits
from diffattn.lab.evaluation.long_context.ruler.ruler import Ruler


def test_standard_lengths_are_those_that_fit(build):
    fit, model = Ruler().lengths_that_fit, build("diff")
    assert fit(build("diff", max_length=20_000)) == (4096, 8192, 16384)
    assert Ruler(lengths=(7, 1024)).lengths_that_fit(model) == (7, 1024)
    assert fit(model, (500, 1000, 2000)) == (500, 1000)
    with pytest.raises(ConfigError, match=r"--set ruler.lengths=\[1024\]"):
        fit(model)
    with pytest.raises(ConfigError, match="must fit the 1024 tokens of diff, got 1025"):
        Ruler(lengths=(4, 1025)).lengths_that_fit(model)


def counted(function):
    calls = []

    def count(units):
        calls.append(units)
        return function(units)

    return count, calls


@pytest.mark.parametrize("seed", range(40))
def test_the_most_that_fits_for_random_growth(seed):
    generator = random.Random(seed)
    sizes = [generator.choice((0, 1, 1, 2, 3, 40)) for _ in range(generator.randint(1, 400))]
    totals = [17]
    for size in sizes:
        totals.append(totals[-1] + size)
    least = generator.randrange(len(totals))
    limit = generator.randint(0, totals[-1] + 20)
    count, calls = counted(totals.__getitem__)
    found = most_that_fits(count, limit, least=least, most=len(sizes))
    fitting = [n for n in range(least, len(totals)) if totals[n] <= limit]
    assert found == (max(fitting) if fitting else None)
    assert len(calls) <= 60


def test_a_long_context_takes_few_counts():
    count, calls = counted(lambda units: 90 + round(1.31 * units))
    found = most_that_fits(count, 131_072, least=1, most=131_072)
    assert count(found) <= 131_072 < count(found + 1)
    assert len(calls) - 2 <= 10


@pytest.mark.parametrize(
    "function",
    [lambda n: 5, lambda n: 5 if n < 77 else 10**9, lambda n: n * n, lambda n: int(n**0.5)],
    ids=["flat", "cliff", "convex", "concave"],
)
def test_it_ends_for_any_growth(function):
    count, calls = counted(function)
    found = most_that_fits(count, 900, least=0, most=100_000)
    assert found == max(n for n in range(100_001) if function(n) <= 900)
    assert len(calls) <= 60
