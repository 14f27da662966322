"""Which models of a stability study are shown to use their context, and what that lets it say.

A difference between two models is one of attention only where both gain from it.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from diffattn.lab.catalog.models import FLOOR, WIDER_FLOOR
from diffattn.lab.studies.limits import MARGIN

FLOORS = (FLOOR, WIDER_FLOOR)
"""What a model has to end below: one without attention, and one whose parameters it then has."""
DIVERGED = "a run of one of the two diverged"
NOT_BOTH = "not both models are shown to attend, nor did one diverge where the other attends"
AT_NONE = "over all rates, as at none both models are shown to attend: says nothing of attention"
AT_LOWEST = "they are compared at the lowest rate alone: says nothing of large rates"
NOT_AT_ALL = (
    "over all rates, but not at all are both models shown to attend: says nothing of attention"
)


def attending(against_floors: Sequence[Mapping[str, Any]]) -> dict[str, list[float]] | None:
    """Model to the rates at which it attends, in rising order; ``None`` without a floor.

    It does where its loss is shown to be lower than that of each floor: the whole paired interval
    of the difference lies :data:`diffattn.lab.studies.limits.MARGIN` or more below 0. Where a run
    of
    either side diverged nothing is shown.

    Args:
        against_floors: Differences of the loss to every floor at every rate.
    """
    if not against_floors:
        return None
    rates = sorted({entry["learning_rate"] for entry in against_floors})
    found: dict[str, list[float]] = {}
    for name in dict.fromkeys(entry["type"] for entry in against_floors):
        rows = [entry for entry in against_floors if entry["type"] == name]
        found[name] = [
            rate
            for rate in rates
            if all(_is_below(entry) for entry in rows if entry["learning_rate"] == rate)
        ]
    return found


def _is_below(entry: Mapping[str, Any]) -> bool:
    return not entry["why"] and entry["high"] is not None and entry["high"] <= -MARGIN


def shared_rates(
    found: Mapping[str, Sequence[float]] | None,
    diverged: Mapping[str, Sequence[float]],
    pair: Sequence[str],
    floors: Sequence[str],
) -> list[float]:
    """The rates at which two models are compared: both attend, or one does and the other diverged.

    Without the latter, means would leave out the rates at which a model is least stable. None
    where a floor was not run.

    Args:
        found: Of :func:`attending`.
        diverged: Model to the rates at which a run of it diverged.
        pair: The two models.
        floors: Those of :data:`FLOORS` that were run.
    """
    if found is None or set(floors) != set(FLOORS):
        return []
    kept = [{*found[name], *diverged[name]} for name in pair]
    attended = {rate for name in pair for rate in found[name]}
    return sorted(attended & kept[0] & kept[1])


def why_not_over(shared: Sequence[float], rates: Sequence[float]) -> str:
    """Why a mean over the shared rates says nothing of attention at large ones; empty if it does.

    Args:
        shared: Of :func:`shared_rates`.
        rates: All of the study.
    """
    if not shared:
        return AT_NONE
    return "" if max(shared) > min(rates) else AT_LOWEST
