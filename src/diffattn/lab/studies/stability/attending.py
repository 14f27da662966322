"""Which models of a stability study use their context, and at which rates they are compared.

A difference between two models is due to attention only if both gain from their context.
"""

from collections.abc import Mapping, Sequence
from enum import Enum

from diffattn.lab.catalog.models import FLOOR, WIDER_FLOOR
from diffattn.lab.records.study_results import StabilityDifference
from diffattn.lab.studies.limits import MARGIN

FLOORS = (FLOOR, WIDER_FLOOR)
"""Controls without attention; the second has the parameters of attention in its FFN."""


class Silent(Enum):
    """Reasons why a difference is uninformative about attention, or about large rates."""

    DIVERGED = "a run of one of the two diverged"
    NOT_BOTH = "not both models are shown to attend, nor did one diverge where the other attends"
    AT_NONE = (
        "over all rates, as at none both models are shown to attend: says nothing of attention"
    )
    AT_LOWEST = "they are compared at the lowest rate alone: says nothing of large rates"
    NOT_AT_ALL = (
        "over all rates, but not at all are both models shown to attend: says nothing of attention"
    )


def attending_rates(differences: Sequence[StabilityDifference]) -> dict[str, list[float]] | None:
    """Model -> the rates at which it attends, rising; ``None`` without ``differences``.

    A model attends at a rate if its loss is reliably below that of each floor: the whole paired
    interval of the difference is at most -:data:`diffattn.lab.studies.limits.MARGIN`. It does not
    count as attending if a run of either side diverged.

    Args:
        differences: Loss minus that of a floor, for every model, floor and rate."""
    if not differences:
        return None
    rates: dict[str, dict[float, bool]] = {}
    for entry in sorted(differences, key=lambda entry: entry["learning_rate"] or 0.0):
        high, rate = entry["high"], entry["learning_rate"]
        assert rate is not None, "a difference to a floor is at one rate"
        is_below = not entry["why"] and high is not None and high <= -MARGIN
        at = rates.setdefault(entry["type"], {})
        at[rate] = at.get(rate, True) and is_below
    names = dict.fromkeys(entry["type"] for entry in differences)
    return {name: [rate for rate, attends in rates[name].items() if attends] for name in names}


def shared_rates(
    attending: Mapping[str, Sequence[float]] | None,
    diverged: Mapping[str, Sequence[float]],
    pair: Sequence[str],
    floors: Sequence[str],
) -> list[float]:
    """The rates at which two models are compared: both attend, or one does and the other diverged.

    Without the second case, means would leave out the rates at which a model is least stable. The
    list is empty if a floor was not run.

    Args:
        attending: Result of :func:`attending_rates`.
        diverged: Model -> the rates at which one of its runs diverged.
        pair: The two models.
        floors: The models of :data:`FLOORS` that were run."""
    if attending is None or set(floors) != set(FLOORS):
        return []
    kept = [{*attending[name], *diverged[name]} for name in pair]
    attended = {rate for name in pair for rate in attending[name]}
    return sorted(attended & kept[0] & kept[1])


def why_silent(shared: Sequence[float], rates: Sequence[float]) -> Silent | None:
    """The reason why a mean over the shared rates says nothing about attention at large rates.

    Returns:
        ``None`` if the mean is informative.
    """
    if not shared:
        return Silent.AT_NONE
    return None if max(shared) > min(rates) else Silent.AT_LOWEST
