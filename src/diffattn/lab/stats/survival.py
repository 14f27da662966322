"""Time to an event, in runs that may end before the event."""

import math
from collections.abc import Sequence

import numpy as np

Steps = Sequence[int | None]


def log_rank(steps: Steps, other_steps: Steps, last_step: int) -> float:
    r"""Two-sided p-value of the log-rank test of equal times to the event in two groups.

    .. math:: \chi^2 = \frac{\left(\sum_t d_t^A - d_t n_t^A / n_t\right)^2}
        {\sum_t d_t \frac{n_t^A}{n_t} \frac{n_t^B}{n_t} \frac{n_t - d_t}{n_t - 1}}

    with d events at step t among n runs without an earlier event. The p-value is the share of all
    ways to split the runs into groups of these sizes that reach the observed statistic. It is
    exact, also for few runs. Above 3 million ways (two groups of 13) it comes from the chi-square
    distribution.

    Source: N. Mantel, Cancer Chemother. Rep. 50 (1966), 163-170.

    ``steps`` and ``other_steps``: each run's step of the event, from 1 to ``last_step``, or
    ``None`` if it did not happen until then.
    """
    if math.comb(len(steps) + len(other_steps), len(steps)) <= 3_000_000:
        return _share_of_splits(steps, other_steps)
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
    with np.errstate(invalid="ignore"):  # 0 / 0 if all events are at one step
        p = float(logrank(*groups).pvalue)
    return 1.0 if math.isnan(p) else p


def _share_of_splits(steps: Steps, other_steps: Steps) -> float:
    """Share of all splits whose statistic is at least the observed one.

    The statistic depends only on how many events of each step fall into the first group. So these
    numbers are enumerated step by step, and weighted with the number of splits that have them.
    scipy.stats.logrank tests one split per call, which is thousands of times slower.
    """
    pooled = (*steps, *other_steps)
    left = np.array([len(steps)])  # [draws]: runs of the first group without an event so far
    weight = np.ones(1)  # [draws]: number of splits, exact as it is far below 2**53
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
    # Equal statistics may differ in the last digits.
    reached = statistics >= statistics[observed] * (1 - 1e-9)
    return float(weight[reached].sum() / weight.sum())


def _ways(size: int) -> np.ndarray:
    """Numbers of ways to take 0 to ``size`` of ``size`` runs, ``[size + 1]``."""
    return np.array([float(math.comb(size, taken)) for taken in range(size + 1)])
