"""The question of a recall study: does a type learn a task sooner than the Transformer?

There is one log-rank test per type and task. Holm's adjustment covers all of them together. All
other differences are estimates.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from diffattn.lab.catalog.models import BASELINE, NEVER_ATTEND
from diffattn.lab.records.study_results import Leak, RecallDifference
from diffattn.lab.stats.intervals import median_interval
from diffattn.lab.stats.multiple import holm
from diffattn.lab.stats.survival import log_rank

_V1 = "diff"
_ERRORS = 4
"""By how many standard errors a model without attention may lie above a guess."""
Steps = Sequence[int | None]


def step_differences(tasks: Mapping[str, Mapping[str, Any]]) -> dict[str, list[RecallDifference]]:
    """Median differences in the steps until a task is learned, and the tests of types.

    Types and controls with attention are compared with the Transformer; these controls with V1 too.

    Args:
        tasks: Name of a task -> its ``types``, ``controls`` and ``num_steps``.

    Returns:
        Task -> differences. Types have p-values, adjusted by Holm over all tasks."""
    differences = {name: _task_differences(task) for name, task in tasks.items()}
    tested = [entry for entries in differences.values() for entry in entries if "p" in entry]
    for entry, p in zip(tested, holm([entry["p"] for entry in tested]), strict=True):
        entry["p_holm"] = p
    return differences


def _task_differences(task: Mapping[str, Any]) -> list[RecallDifference]:
    types, controls, last = task["types"], task["controls"], task["num_steps"]
    steps = {name: entry["solved_steps"] for name, entry in {**types, **controls}.items()}
    attending = [name for name in controls if name not in NEVER_ATTEND]
    pairs = [(name, BASELINE) for name in (*types, *attending) if name != BASELINE]
    pairs += [(name, _V1) for name in attending if _V1 in types]
    differences: list[RecallDifference] = []
    for name, baseline in pairs:
        sides = steps[name], steps[baseline]
        values = [_steps_later(a, b, last) for a, b in zip(*sides, strict=True)]
        difference: Any = {
            "variant": name,
            "baseline": baseline,
            "values": values,
            **median_interval(values).recorded(),
        }
        if name in types:
            difference["p"] = log_rank(*sides, last)
        differences.append(difference)
    return differences


def _steps_later(step: int | None, other: int | None, last: int) -> float:
    """Steps between two runs. A run that did not learn the task is later by all steps."""
    if step is None or other is None:
        return float(last * ((step is None) - (other is None)))
    return float(step - other)


def find_leak(
    controls: Mapping[str, Any], ceilings: Mapping[str, float], test_sequences: int
) -> Leak:
    """Whether a model without attention answers better than a random guess plausibly does.

    The limit is the guess plus four standard errors of a share of ``test_sequences``. The error
    counts sequences, because the queries of one sequence are not independent.
    """
    guess = ceilings["values"]
    limit = guess + _ERRORS * (guess * (1 - guess) / test_sequences) ** 0.5
    blind = [controls[name]["test_accuracy"] for name in NEVER_ATTEND if name in controls]
    highest = max((accuracy for of_runs in blind for accuracy in of_runs), default=None)
    leaks = None if highest is None else highest > limit
    return {"limit": limit, "highest": highest, "leaks": leaks}


def explain_uninformative(types: Mapping[str, Any], leak: Leak) -> str:
    """The reason why a task is uninformative about types; empty if it is informative."""
    if leak["leaks"] is None:
        return "no model without attention was trained, so the task may give its answers away."
    if leak["leaks"]:
        return (
            f"a model without attention answers {leak['highest']:.3f} of the queries, more than "
            f"the {leak['limit']:.3f} that guessing explains, so the task gives answers away."
        )
    if not any(entry["solved"] for entry in types.values()):
        return "no run of any type was solved in the steps given."
    return ""
