"""When something happens, in runs of which some end before it does."""

import itertools
import math
from collections.abc import Sequence

import numpy as np

from diffattn.errors import ConfigError

_MOST_SPLITS = 50_000


def log_rank(
    steps: Sequence[int | None], other_steps: Sequence[int | None], last_step: int
) -> float:
    r"""Two-sided p-value of the log-rank test that two groups are equally fast.

    .. math:: \chi^2 = \frac{\left(\sum_t d_t^A - d_t n_t^A / n_t\right)^2}
        {\sum_t d_t \frac{n_t^A}{n_t} \frac{n_t^B}{n_t} \frac{n_t - d_t}{n_t - 1}}

    with d events among n runs still under way at step t. The p-value is the share of all ways to
    split the runs into groups of these sizes that give at least the observed statistic: exact, and
    valid for few runs. Above 50,000 ways it is that of the chi-square distribution.

    Source: N. Mantel, Cancer Chemother. Rep. 50 (1966), 163-170.

    Args:
        steps: The one group: the step of the event, from 1 to ``last_step``, or ``None`` where it
            did not happen within ``last_step`` steps.
        other_steps: The other group.
        last_step: Steps after which a run without the event was no longer watched.

    Returns:
        The p-value, from 0 to 1.

    Raises:
        ConfigError: A group is empty, or a step is out of range.
    """
    for group in (steps, other_steps):
        wrong = [step for step in group if step is not None and not 0 <= step <= last_step]
        if not group or wrong:
            raise ConfigError(
                f"log_rank: steps must be one or more from 0 to {last_step} or None, "
                f"got {list(group)}."
            )
    if all(step is None for step in (*steps, *other_steps)):
        return 1.0
    if math.comb(len(steps) + len(other_steps), len(steps)) > _MOST_SPLITS:
        return _approximate(steps, other_steps, last_step)
    fewer, more = sorted((steps, other_steps), key=len)
    statistics = _of_every_split([*fewer, *more], len(fewer))
    # The first split is the observed one. Equal ones may differ in the last digits.
    return float((statistics >= statistics[0] * (1 - 1e-9)).mean())


def _approximate(
    steps: Sequence[int | None], other_steps: Sequence[int | None], last_step: int
) -> float:
    """By the chi-square distribution; 1 if nothing can differ."""
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


def _of_every_split(steps: Sequence[int | None], size: int) -> np.ndarray:
    """The statistic ``[splits]`` of all first groups of this size, in lexical order.

    scipy.stats.logrank does one split a call, hundreds of times slower.
    """
    times = np.array([math.inf if step is None else step for step in steps])
    chosen = np.array(list(itertools.combinations(range(len(times)), size)))
    surplus, variance = np.zeros(len(chosen)), np.zeros(len(chosen))
    for time in np.unique(times[np.isfinite(times)]):
        # A run without the event counts as under way at every event.
        at_risk, events = times >= time, times == time
        total, count = at_risk.sum(), events.sum()
        share = at_risk[chosen].sum(1) / total
        surplus += events[chosen].sum(1) - count * share
        variance += count * share * (1 - share) * (total - count) / max(1, total - 1)
    return np.divide(surplus**2, variance, out=np.zeros_like(surplus), where=variance > 0)
