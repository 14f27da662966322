"""The verdict of a stability study: whether it is informative about attention at large rates."""

from collections.abc import Iterator, Mapping, Sequence

from diffattn.lab.catalog.models import type_name
from diffattn.lab.records.study_results import StabilityVerdict
from diffattn.lab.report.page.wording import listing
from diffattn.lab.studies.limits import MARGIN
from diffattn.lab.studies.stability.attending import Silent, why_silent

_BELOW = f"to end {MARGIN:g} nats or more below the models without attention"
_HOW = "(paired 95 % intervals)"
Attending = Mapping[str, Sequence[float]]
"""Model -> the rates at which it attends."""
Shared = Mapping[tuple[str, str], Sequence[float]]
"""Pair -> the rates at which both attend, or one attends and the other diverged."""


def verdict(
    attending: Attending | None,
    shared: Shared,
    rates: Sequence[float],
    *,
    lacking: Sequence[str] = (),
    void: Sequence[float] = (),
) -> StabilityVerdict:
    """Judge whether the study is informative, and at which rates models attend.

    It is informative if both floors were run and a pair shares a rate above the lowest.

    Args:
        lacking: Controls without attention that were not run.
        void: Rates at which a run without attention diverged.
    """
    reason = _uninformative(attending, shared, rates, lacking)
    parts = [f"Uninformative: {reason}."] if reason else []
    if attending is not None:
        parts += _describe(attending, shared, rates, void)
    return {"informative": not reason, "sentence": " ".join(parts), "margin": MARGIN}


def _uninformative(
    attending: Attending | None, shared: Shared, rates: Sequence[float], lacking: Sequence[str]
) -> str:
    """The reason why the study is uninformative about attention at large rates; empty if none."""
    if attending is None:
        return (
            "no model without attention was run, so nothing shows that these models use their "
            "context"
        )
    if not any(attending.values()):
        return (
            f"at no learning rate is a model shown {_BELOW} {_HOW}. What differs here between the "
            "models is not shown to be what they do with their context"
        )
    if lacking:
        return (
            f"{listing(map(type_name, lacking))} was not run, so nothing shows that these models "
            "use their context"
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
