"""The learning rate of every type, by one rule, from a sweep that extends itself."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from diffattn.lab.studies.recall.config import Group, RecallMember, RecallStudyConfig, swept_run

Results = Mapping[str, Mapping[str, Any]]
"""Name of a run to what its ``results.json`` holds."""

_WORST = (math.inf, math.inf, math.inf)


@dataclass(frozen=True, kw_only=True, slots=True)
class Choice:
    """What the sweep of one task and type has come to."""

    rate: float
    """The best of those tried."""
    tried: tuple[float, ...]
    """Rising."""
    inside: bool | None
    """Whether a lower and a higher rate were tried, too; ``None`` where nothing was chosen."""
    wanted: tuple[float, ...]
    """Rates that must be run before this is the choice."""


def choices(config: RecallStudyConfig, results: Results) -> dict[Group, Choice]:
    """What is chosen for every task and type, as far as its runs are done.

    The rate with the most solved sweep runs; among equals the fewest steps in total (a run that
    is not solved counts all of its steps); then the smallest summed validation loss. While the
    best of a sweep is its lowest or highest rate, half or twice that rate is tried next, at most
    ``config.extensions`` times.

    Args:
        config: The study.
        results: Of all runs so far.
    """
    return {
        (task.task_name, name): _choice(config, (task.task_name, name), results)
        for task in config.tasks
        for name in config.swept
    }


def wanted_runs(config: RecallStudyConfig, results: Results) -> list[RecallMember]:
    """The sweep's next runs; none when every rate is chosen."""
    found = choices(config, results)
    return config.sweep({group: choice.wanted for group, choice in found.items()})


def _choice(config: RecallStudyConfig, group: Group, results: Results) -> Choice:
    tried = list(config.learning_rates)
    if len(tried) == 1:
        return Choice(rate=tried[0], tried=(), inside=None, wanted=())
    for extension in range(config.extensions + 1):
        scores = {rate: _score(config, group, rate, results) for rate in tried}
        missing = tuple(rate for rate, score in scores.items() if score is None)
        best = min(tried, key=lambda rate: scores[rate] or _WORST)
        inside = tried[0] < best < tried[-1]
        if missing or inside or extension == config.extensions:
            break
        tried = [best / 2, *tried] if best == tried[0] else [*tried, 2 * best]
    return Choice(rate=best, tried=tuple(tried), inside=inside, wanted=missing)


def _score(
    config: RecallStudyConfig, group: Group, rate: float, results: Results
) -> tuple[float, float, float] | None:
    """Unsolved runs, steps and loss; ``None`` while a run is missing."""
    names = [swept_run(*group, rate, seed) for seed in config.sweep_seeds]
    if any(name not in results for name in names):
        return None
    (num_steps,) = (t.train.num_steps for t in config.tasks if t.task_name == group[0])
    runs = [results[name] for name in names]
    losses = [run["validation_loss"] for run in runs]
    return (
        sum(not run["solved"] for run in runs),
        sum(run["solved_step"] if run["solved"] else num_steps for run in runs),
        math.inf if None in losses else math.fsum(losses),  # None: it diverged
    )
