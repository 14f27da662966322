"""The verdict of a stability study: which models use their context, and at which rates.

A difference between two models is due to attention only if both gain from their context.
"""

from collections.abc import Iterator, Mapping, Sequence
from enum import Enum

from diffattn.lab.catalog.models import type_name
from diffattn.lab.records.study_results import StabilityDifference
from diffattn.lab.records.text_results import Outcome
from diffattn.lab.report.page.wording import listing
from diffattn.lab.studies.limits import MARGIN

_BELOW = f"to end {MARGIN:g} nats or more below the models without attention"
_HOW = "(paired 95 % intervals)"
Attending = Mapping[str, Sequence[float]]
"""Model -> the rates at which it attends."""
Shared = Mapping[tuple[str, str], Sequence[float]]
"""Pair -> the rates at which both attend, or one attends and the other diverged."""


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


def attending_rates(differences: Sequence[StabilityDifference]) -> dict[str, list[float]]:
    """Model -> the rates at which it attends, rising.

    A model attends at a rate if its loss is reliably below that of each floor: the whole paired
    interval of the difference is at most -:data:`diffattn.lab.studies.limits.MARGIN`. It does not
    count as attending if a run of either side diverged."""
    rates: dict[str, dict[float, bool]] = {}
    for entry in sorted(differences, key=lambda entry: entry["learning_rate"] or 0.0):
        high, rate = entry["high"], entry["learning_rate"]
        assert rate is not None, "a difference to a floor is at one rate"
        is_below = not entry["why"] and high is not None and high <= -MARGIN
        at = rates.setdefault(entry["type"], {})
        at[rate] = at.get(rate, True) and is_below
    return {name: [rate for rate, attends in at.items() if attends] for name, at in rates.items()}


def shared_rates(
    attending: Attending, diverged: Mapping[str, Sequence[float]], pair: Sequence[str]
) -> list[float]:
    """The rates at which two models are compared: both attend, or one does and the other diverged.

    Without the second case, means would leave out the rates at which a model is least stable."""
    kept = [{*attending[name], *diverged[name]} for name in pair]
    attended = {rate for name in pair for rate in attending[name]}
    return sorted(attended & kept[0] & kept[1])


def why_silent(shared: Sequence[float], rates: Sequence[float]) -> Silent | None:
    """The reason why a mean over the shared rates says nothing about attention at large rates."""
    if not shared:
        return Silent.AT_NONE
    return None if max(shared) > min(rates) else Silent.AT_LOWEST


def verdict(
    attending: Attending, shared: Shared, rates: Sequence[float], void: Sequence[float]
) -> Outcome:
    """Judge whether the study is informative, and at which rates models attend.

    It is informative if a pair shares a rate above the lowest. At the rates ``void`` a run without
    attention diverged.
    """
    reason = _uninformative(attending, shared, rates)
    parts = [f"Uninformative: {reason}."] if reason else []
    parts += _describe(attending, shared, rates, void)
    return {"informative": not reason, "sentence": " ".join(parts), "margin": MARGIN}


def _uninformative(attending: Attending, shared: Shared, rates: Sequence[float]) -> str:
    """The reason why the study is uninformative about attention at large rates; empty if none."""
    if not any(attending.values()):
        return (
            f"at no learning rate is a model shown {_BELOW} {_HOW}. What differs here between the "
            "models is not shown to be what they do with their context"
        )
    reasons = {why_silent(at, rates) for at in shared.values()}
    if None in reasons:
        return ""
    if Silent.AT_LOWEST in reasons:
        return (
            f"models that are shown {_BELOW} are compared at the lowest learning rate "
            f"({min(rates):g}) alone, so nothing is said of large ones"
        )
    return f"at no learning rate are two models that are compared both shown {_BELOW}"


def _describe(
    attending: Attending, shared: Shared, rates: Sequence[float], void: Sequence[float]
) -> Iterator[str]:
    """List the models that attend, and the rates over which the mean of every pair is taken."""
    if void:
        yield f"Nothing is shown at {_rates(void)}: a run without attention diverged there."
    used = {name: at for name, at in attending.items() if at}
    if not used:
        return
    attend = listing(f"{type_name(name)} ({_rates(at)})" for name, at in used.items())
    yield f"Shown {_BELOW} {_HOW}: {attend}."
    if never := [type_name(name) for name in attending if name not in used]:
        yield f"Not at any rate: {listing(never)}."
    groups: dict[tuple[float, ...], list[str]] = {}
    for pair, at in shared.items():
        groups.setdefault(tuple(at), []).append(" − ".join(map(type_name, pair)))
    if groups:
        means = "; ".join(f"{_over(at, rates)}: {listing(pairs)}" for at, pairs in groups.items())
        yield (
            f"Means over rates, also where one of the two attends and the other diverged: {means}."
        )


def _over(shared: Sequence[float], rates: Sequence[float]) -> str:
    why = why_silent(shared, rates)
    if why is Silent.AT_NONE:
        return "over all rates, so saying nothing of attention"
    lowest = ", the lowest alone, so saying nothing of large ones" if why else ""
    return f"over {_rates(shared)}{lowest}"


def _rates(rates: Sequence[float]) -> str:
    return f"rate{'s' if len(rates) > 1 else ''} {listing(f'{rate:g}' for rate in rates)}"
