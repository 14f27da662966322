"""McNemar's test and sign flips: against published values, enumeration, and under the null."""

import itertools
import math

import numpy as np
import pytest

from diffattn.errors import ConfigError
from diffattn.stats.paired import mcnemar_test, sign_flip_test

# Plant heights of Darwin's maize, crossed minus self-fertilised, in eighths of an inch.
DARWIN = [49, -67, 8, 16, 6, 23, 28, 41, 14, 29, 56, 24, 75, 60, -48]


@pytest.mark.parametrize(
    ("wins", "losses", "p"),
    [
        (0, 0, 1.0),
        (1, 0, 1.0),
        (5, 0, 0.0625),
        (3, 7, 0.34375),
        (7, 3, 0.34375),
        (2, 10, 0.03857421875),
    ],
)
def test_mcnemar_equals_the_binomial_law(wins, losses, p):
    assert mcnemar_test(wins, losses) == p


def test_mcnemar_equals_enumeration():
    for wins, losses in itertools.product(range(7), repeat=2):
        n = wins + losses
        far = abs(wins - losses)
        outcomes = [2 * sum(bits) - n for bits in itertools.product((0, 1), repeat=n)]
        expected = sum(abs(one) >= far for one in outcomes) / len(outcomes)
        assert mcnemar_test(wins, losses) == pytest.approx(expected)


def test_mcnemar_of_many_items_keeps_its_digits():
    # Normal limit with continuity correction, good to a percent here.
    z = (540 - 460 - 1) / math.sqrt(1000)
    assert mcnemar_test(540, 460) == pytest.approx(math.erfc(z / math.sqrt(2)), rel=0.01)


def test_sign_flips_of_darwins_maize():
    """Fisher counted 863 of 32,768 sign patterns on each side."""
    expected = 2 * 863 / 2**15
    assert sign_flip_test(DARWIN, repeats=200_000) == pytest.approx(
        expected, abs=4 * math.sqrt(expected / 200_000)
    )
    # One value fewer is enumerated.
    fourteen = np.array(DARWIN[:-1])
    signs = np.array(list(itertools.product((-1, 1), repeat=14)))
    exact = (np.abs(signs @ fourteen) >= abs(fourteen.sum())).mean()
    assert sign_flip_test(fourteen) == exact


def test_sign_flips_of_equal_sizes_are_mcnemar():
    for wins, losses in ((9, 3), (5, 5), (12, 1)):
        differences = [0.1] * wins + [-0.1] * losses
        assert sign_flip_test(differences) == pytest.approx(mcnemar_test(wins, losses))


def test_p_values_under_the_null_are_no_smaller_than_they_say():
    generator = np.random.default_rng(0)
    for n in (8, 20):
        found = [sign_flip_test(generator.normal(size=n), repeats=500) for _ in range(300)]
        for level in (0.05, 0.2, 0.5):
            # Standard error of the share, and the step of the 2^-7 grid for n = 8.
            slack = 3 * math.sqrt(level * (1 - level) / 300) + 2**-7
            assert np.mean(np.array(found) <= level) == pytest.approx(level, abs=slack)


def test_no_difference_is_no_evidence():
    assert sign_flip_test([0.0, 0.0]) == 1.0
    assert sign_flip_test(np.zeros(20), repeats=100) == 1.0
    assert sign_flip_test(np.ones(40), repeats=1_000) == pytest.approx(1 / 1_001)


def test_arguments_out_of_range_are_refused():
    with pytest.raises(ConfigError, match="0 or more"):
        mcnemar_test(-1, 3)
    for bad in ([], [np.nan]):
        with pytest.raises(ConfigError, match="one or more finite"):
            sign_flip_test(bad)
