"""When something happens, in runs of which some end before it does."""

import itertools
import math
from collections.abc import Sequence

from diffattn.errors import ConfigError

_MOST_SPLITS = 50_000


def log_rank(
    steps: Sequence[int | None], other_steps: Sequence[int | None], last_step: int
) -> float:
    r"""Two-sided p-value of the log-rank test that two groups are equally fast.

    .. math:: \chi^2 = \frac{\left(\sum_t d_t^A - d_t n_t^A / n_t\right)^2}
        {\sum_t d_t \frac{n_t^A}{n_t} \frac{n_t^B}{n_t} \frac{n_t - d_t}{n_t - 1}}

    with d events among n runs still under way at step t. The p-value is the share of all ways to
    split the runs into groups of these sizes that give at least the statistic found: exact, and
    sound for few runs. Above 50,000 ways it is that of the chi-square distribution.

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
    # A run that was watched to the end counts as under way at every event.
    times = [math.inf if step is None else step for step in (*steps, *other_steps)]
    found = _chi_square(times, set(range(len(steps))))
    if math.comb(len(times), len(steps)) > _MOST_SPLITS:
        return math.erfc(math.sqrt(found / 2))
    splits = [
        _chi_square(times, set(chosen))
        for chosen in itertools.combinations(range(len(times)), len(steps))
    ]
    # The same split in another order of sums may differ in the last digits.
    return sum(value >= found * (1 - 1e-9) for value in splits) / len(splits)


def _chi_square(times: Sequence[float], members: set[int]) -> float:
    """The log-rank statistic of the ``members`` against the rest; 0 if nothing can differ."""
    surplus = variance = 0.0
    for time in sorted({time for time in times if math.isfinite(time)}):
        at_risk = [i for i, other in enumerate(times) if other >= time]
        events = [i for i in at_risk if times[i] == time]
        total, count = len(at_risk), len(events)
        share = sum(i in members for i in at_risk) / total
        surplus += sum(i in members for i in events) - count * share
        if total > 1:
            variance += count * share * (1 - share) * (total - count) / (total - 1)
    return surplus**2 / variance if variance > 0 else 0.0
