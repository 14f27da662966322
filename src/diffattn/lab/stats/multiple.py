"""Several tests at once: p-values that are adjusted for their number."""

from collections.abc import Sequence


def holm(p_values: Sequence[float]) -> list[float]:
    r"""Holm's adjusted p-values: any true null falls below α with probability at most α.

    .. math:: \tilde p_{(i)} = \max_{j \le i} \min(1, (m - j + 1)\, p_{(j)})

    for the m p-values in rising order. The tests may depend on each other in any way.

    Source: S. Holm, Scand. J. Stat. 6 (1979), 65-70.

    Args:
        p_values: P-values of the whole family of tests; may be empty.
    """
    adjusted, least = [0.0] * len(p_values), 0.0
    for rank, i in enumerate(sorted(range(len(p_values)), key=p_values.__getitem__)):
        least = max(least, min(1.0, (len(p_values) - rank) * p_values[i]))
        adjusted[i] = least
    return adjusted
