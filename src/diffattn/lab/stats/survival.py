"""Time to an event, in runs of which some end before the event."""

import math
from collections.abc import Sequence

import numpy as np

_MOST_SPLITS = 3_000_000
"""Ways to split two groups of 12 are 2.7 million."""
Steps = Sequence[int | None]


def log_rank(steps: Steps, other_steps: Steps, last_step: int) -> float:
    r"""Two-sided p-value of the log-rank test that two groups are equally fast.

    .. math:: \chi^2 = \frac{\left(\sum_t d_t^A - d_t n_t^A / n_t\right)^2}
        {\sum_t d_t \frac{n_t^A}{n_t} \frac{n_t^B}{n_t} \frac{n_t - d_t}{n_t - 1}}

    with d events among n runs still under way at step t. The p-value is the share of all ways to
    split the runs into groups of these sizes that give at least the observed statistic: exact, and
    valid for few runs. Above 3 million ways (two groups of 13) it is that of the chi-square
    distribution.

    Source: N. Mantel, Cancer Chemother. Rep. 50 (1966), 163-170.

    Args:
        steps: The one group: the step of the event, from 1 to ``last_step``, or ``None`` where it
            did not happen within ``last_step`` steps.
        other_steps: The other group.
        last_step: Steps after which a run without the event was no longer watched.
    """
    assert min(len(steps), len(other_steps)) > 0, "both groups have runs"
    if math.comb(len(steps) + len(other_steps), len(steps)) > _MOST_SPLITS:
        return _approximate(steps, other_steps, last_step)
    return _share_of_splits(steps, other_steps)


def _approximate(steps: Steps, other_steps: Steps, last_step: int) -> float:
    """The p-value by the chi-square distribution; 1 if no group has an event."""
    if all(step is None for step in (*steps, *other_steps)):
        return 1.0
    from scipy.stats import CensoredData, logrank

    groups = [
        CensoredData(
            uncensored=[step for step in group if step is not None],
            right=[last_step for step in group if step is None],
        )
        for group in (steps, other_steps)
    ]
    with np.errstate(invalid="ignore"):  # 0 / 0 where all events share the step
        p = float(logrank(*groups).pvalue)
    return 1.0 if math.isnan(p) else p


def _share_of_splits(steps: Steps, other_steps: Steps) -> float:
    """Share of all splits whose statistic is the observed one or larger.

    Splits with equal numbers of runs of each step in the first group have the same statistic. So
    the numbers are enumerated step by step, and each counts as often as there are such splits.
    scipy.stats.logrank tests one split per call, which is thousands of times slower.
    """
    pooled = (*steps, *other_steps)
    left = np.array([len(steps)])  # [draws]: of the first group, still under way
    weight = np.ones(1)  # all whole numbers far below 2**53
    surplus, variance = np.zeros(1), np.zeros(1)
    total, observed = len(pooled), 0
    for time in sorted({step for step in pooled if step is not None}):
        events, share = pooled.count(time), left / total
        rest = total - events
        fewest = np.maximum(0, left - rest)
        draws = np.minimum(events, left) - fewest + 1
        first = np.cumsum(draws) - draws
        row = np.repeat(np.arange(len(left)), draws)
        taken = np.arange(len(row)) - (first - fewest)[row]
        observed = int(first[observed] + steps.count(time) - fewest[observed])
        variance = (variance + events * share * (1 - share) * rest / max(1, total - 1))[row]
        surplus = (surplus - events * share)[row] + taken
        weight = weight[row] * _ways(events)[taken]
        left, total = left[row] - taken, rest
    weight *= _ways(total)[left]
    statistics = np.divide(surplus**2, variance, out=np.zeros_like(surplus), where=variance > 0)
    # Equal ones may differ in the last digits.
    reached = statistics >= statistics[observed] * (1 - 1e-9)
    return float(weight[reached].sum() / weight.sum())


def _ways(size: int) -> np.ndarray:
    """Ways ``[size + 1]`` to take 0 to ``size`` of so many."""
    return np.array([float(math.comb(size, taken)) for taken in range(size + 1)])
