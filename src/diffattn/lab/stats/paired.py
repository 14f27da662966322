"""Differences between runs that share a seed, their tests, and Holm's adjustment of several."""

from collections.abc import Sequence

import numpy as np

from diffattn.lab.stats.intervals import Interval, mean_interval


def paired_difference(
    values: Sequence[float] | np.ndarray, baseline: Sequence[float] | np.ndarray
) -> Interval:
    r"""Student-t interval of the mean difference of paired values.

    .. math:: \bar d \pm t_{(1 + \text{level}) / 2,\; n - 1}\; s_d / \sqrt{n}, \quad d_i = x_i - b_i

    Pairing removes effects that both runs of a seed share, such as the order of the data, so that
    they do not hide the difference.

    Args:
        values: ``[n]``, finite, n >= 1.
        baseline: ``[n]``; position i is the run with the same seed as position i of ``values``.

    Raises:
        ConfigError: A value is not finite.
    """
    x, b = np.asarray(values, dtype=np.float64), np.asarray(baseline, dtype=np.float64)
    assert x.shape == b.shape, "both have a run of each seed"
    with np.errstate(invalid="ignore"):  # inf - inf is refused as not finite
        return mean_interval(x - b)


def paired_t_test(differences: Sequence[float] | np.ndarray) -> float | None:
    """Two-sided p-value of Student's t test that paired differences have mean 0.

    It belongs to the interval of :func:`paired_difference`; one difference has none. If all
    are equal they have no spread: then p is 1 if they are 0, else that of :func:`sign_flip_test`.

    Source: Student, Biometrika 6 (1908), 1-25.
    """
    mean = mean_interval(differences).mean
    x = np.asarray(differences, dtype=np.float64)
    if x.size == 1:
        return None
    with np.errstate(over="ignore"):  # a spread above the largest float: p is 1
        error = float(x.std(ddof=1)) / x.size**0.5
    if error <= 1e-12 * float(np.abs(x).max()):
        return sign_flip_test(x)
    from scipy.special import stdtr  # loads in a fifth of the time of scipy.stats

    return 2 * float(stdtr(x.size - 1, -abs(mean) / error))


def mcnemar_test(wins: int, losses: int) -> float:
    """Exact two-sided p-value of McNemar's test: are wins and losses equally likely?

    Source: Q. McNemar, Psychometrika 12 (1947), 153; exact form by the binomial distribution.
    """
    if wins == losses == 0:
        return 1.0
    from scipy.stats import binomtest

    return float(binomtest(wins, wins + losses).pvalue)


def sign_flip_test(differences: Sequence[float] | np.ndarray, *, repeats: int = 20_000) -> float:
    """Two-sided p-value: share of random signs whose absolute sum is at least the observed one.

    Up to 14 values: exact, over all signs. More values: ``repeats`` random draws. The observed
    signs count as a draw, so that p is never 0.

    Source: R. A. Fisher, The Design of Experiments (1935), section 21.
    """
    x = np.asarray(differences, dtype=np.float64)
    observed = abs(x.sum())
    # Sums of the same terms in another order must tie. scipy.stats.permutation_test has a
    # tolerance relative to the observed sum, which breaks ties if the sum is near 0.
    tolerance = 1e-12 * np.abs(x).sum()
    if x.size <= 14:
        bits = np.arange(2**x.size)[:, None] >> np.arange(x.size) & 1
        return float((np.abs((1 - 2 * bits) @ x) >= observed - tolerance).mean())
    generator = np.random.default_rng(0)
    hits, block = 0, max(1, 2**22 // x.size)
    for start in range(0, repeats, block):
        signs = generator.integers(0, 2, size=(min(block, repeats - start), x.size)) * 2 - 1
        hits += int((np.abs(signs @ x) >= observed - tolerance).sum())
    return (hits + 1) / (repeats + 1)


def holm(p_values: Sequence[float]) -> list[float]:
    r"""Holm's adjusted p-values: any true null falls below α with probability at most α.

    .. math:: \tilde p_{(i)} = \max_{j \le i} \min(1, (m - j + 1)\, p_{(j)})

    for the m p-values in rising order. The tests may depend on each other in any way.

    Source: S. Holm, Scand. J. Stat. 6 (1979), 65-70.
    """
    adjusted, least = [0.0] * len(p_values), 0.0
    for rank, i in enumerate(sorted(range(len(p_values)), key=p_values.__getitem__)):
        least = max(least, min(1.0, (len(p_values) - rank) * p_values[i]))
        adjusted[i] = least
    return adjusted
