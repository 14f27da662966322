"""Whether a stability study is one of attention, in a sentence."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from diffattn.lab.catalog.models import type_name
from diffattn.lab.report.page.wording import listing
from diffattn.lab.studies.limits import MARGIN
from diffattn.lab.studies.stability.attending import AT_LOWEST, AT_NONE, why_not_over

_BELOW = f"to end {MARGIN:g} nats or more below the models without attention"
_HOW = "(paired 95 % intervals)"


def verdict(
    attending: Mapping[str, Sequence[float]] | None,
    shared: Mapping[tuple[str, str], Sequence[float]],
    rates: Sequence[float],
    *,
    lacking: Sequence[str] = (),
    void: Sequence[float] = (),
) -> dict[str, Any]:
    """What the comparison with the models without attention says.

    It is informative if two models are compared at one rate above the lowest.

    Args:
        attending: Of :func:`diffattn.lab.studies.stability.attending.attending`.
        shared: Pair that is compared to the rates at which both attend, or one does and the other
            diverged.
        rates: All of the study.
        lacking: Models without attention that were not run.
        void: Rates at which a run without attention diverged.

    Returns:
        ``informative``, ``sentence`` and ``margin``.
    """
    reason = _reason(attending, shared, rates, lacking)
    parts = [f"Uninformative: {reason}."] if reason else []
    if attending is not None:
        parts += _said(attending, shared, rates, void)
    return {"informative": not reason, "sentence": " ".join(parts), "margin": MARGIN}


def _reason(
    attending: Mapping[str, Sequence[float]] | None,
    shared: Mapping[tuple[str, str], Sequence[float]],
    rates: Sequence[float],
    lacking: Sequence[str],
) -> str:
    """Why nothing is said of attention at large rates; empty if something is."""
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
    whys = {why_not_over(at, rates) for at in shared.values()}
    if "" in whys:
        return ""
    if AT_LOWEST in whys:
        return (
            f"models that are shown {_BELOW} are compared at the lowest learning rate "
            f"({min(rates):g}) alone, so nothing is said of large ones"
        )
    return f"at no learning rate are two models that are compared both shown {_BELOW}"


def _said(
    attending: Mapping[str, Sequence[float]],
    shared: Mapping[tuple[str, str], Sequence[float]],
    rates: Sequence[float],
    void: Sequence[float],
) -> Iterator[str]:
    """Who attends at which rates, and which rates the mean of every pair is over."""
    if void:
        yield f"Nothing is shown at {_rates(void)}: a run without attention diverged there."
    used = {name: at for name, at in attending.items() if at}
    if not used:
        return
    does = listing(f"{type_name(name)} ({_rates(at)})" for name, at in used.items())
    yield f"Shown {_BELOW} {_HOW}: {does}."
    if never := [type_name(name) for name in attending if name not in used]:
        yield f"Not at any rate: {listing(never)}."
    groups: dict[tuple[float, ...], list[str]] = {}
    for pair, at in shared.items():
        groups.setdefault(tuple(at), []).append(" − ".join(map(type_name, pair)))
    over = (f"{_over(at, rates)}: {listing(pairs)}" for at, pairs in groups.items())
    if groups:
        yield (
            f"Means over rates, also where one of the two attends and the other diverged: "
            f"{'; '.join(over)}."
        )


def _over(shared: Sequence[float], rates: Sequence[float]) -> str:
    """What a mean is over, and that it says nothing if so."""
    why = why_not_over(shared, rates)
    if why == AT_NONE:
        return "over all rates, so saying nothing of attention"
    of_lowest = ", the lowest alone, so saying nothing of large ones"
    return f"over {_rates(shared)}{of_lowest if why else ''}"


def _rates(rates: Sequence[float]) -> str:
    return f"rate{'s' if len(rates) > 1 else ''} {listing(f'{rate:g}' for rate in rates)}"
