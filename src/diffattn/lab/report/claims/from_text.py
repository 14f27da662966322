"""Effects from studies of text: losses. Pure; ``None`` without a record."""

from collections.abc import Mapping, Sequence
from math import nan
from statistics import fmean
from typing import Any

from diffattn.lab.catalog.models import SIDE_EFFECTS, TYPES, own_side_effects
from diffattn.lab.report.claims.measured import NO_CONTROL, Measure, Measured, explained_by, paired
from diffattn.lab.report.claims.records import ClaimRecords
from diffattn.lab.report.page.phase import gap, lost
from diffattn.lab.stats.intervals import mean_interval

_BARE = "diff_no_norm"
"""V1 without what its authors added beside the difference."""
_UNINFORMATIVE = "Uninformative about attention types: "


def loss_difference(
    variant: str, baseline: str, *, part: str | None = None, bound: float = 0.0, of: str = "text"
) -> Measure:
    """Validation loss of a variant minus that of another, each at its chosen rate, by seed.

    Args:
        variant: Of the study.
        baseline: Another.
        part: Tokens that count, for example ``"repeated_bigram"``. Default: all.
        bound: What the test asks whether the difference is.
        of: The study: ``"text"``, ``"ablations"`` or ``"rank"``.
    """

    def measure(records: ClaimRecords) -> Measured | None:
        study: Mapping[str, Any] | None = getattr(records, of)
        losses = {} if study is None else _losses(study, part)
        if why := lost((study or {}).get("diverged") or {}, variant, baseline):
            return Measured(effect=nan, low=None, high=None, n=0, p=1.0, uninformative=why)
        if study is None or variant not in losses or baseline not in losses:
            return None
        values = _differences(losses, variant, baseline)
        why = _why_not(study, variant, baseline, part, values)
        rates = "chosen rates" if _are_chosen(study) else "one learning rate"
        return paired(values, bound, uninformative=why, note=rates)

    return measure


def _are_chosen(study: Mapping[str, Any]) -> bool:
    """Whether rates were swept, or differ because another study swept them."""
    groups = (entry["at"]["best"] for entry in study["variants"].values())
    used = {group.get("learning_rate") for group in groups}
    return bool(study["rates"]["variants"]) or len(used) > 1


def _losses(text: Mapping[str, Any], part: str | None, at: str = "best") -> dict[str, list[float]]:
    ats = {name: entry["at"] for name, entry in text["variants"].items()}
    groups = {name: groups.get(at, groups["best"]) for name, groups in ats.items()}
    if part is None:
        return {name: group["validation_loss"]["values"] for name, group in groups.items()}
    return {
        name: group["parts"][part]["values"]
        for name, group in groups.items()
        if part in group["parts"]
    }


def _differences(losses: Mapping[str, Sequence[float]], a: str, b: str) -> list[float]:
    """One per seed; both have the study's seeds in its order, a control perhaps the first only."""
    return [x - y for x, y in zip(losses[a], losses[b], strict=False)]


def _why_not(
    text: Mapping[str, Any], variant: str, baseline: str, part: str | None, values: Sequence[float]
) -> str:
    """Why a difference says nothing: the study's verdict, one side that copies from the context
    where the other does not yet, a lead that the common rate does not have, a control that gains as
    much at the rates that were chosen or at the common one, where all have the same, V2 that gains
    as much without its difference, or a norm without which V1 gains nothing."""
    if not text["verdict"]["informative"]:
        return str(text["verdict"]["sentence"]).removeprefix(_UNINFORMATIVE)
    if why := gap(text["variants"], variant, baseline):
        return why
    if variant not in TYPES or baseline != "softmax" or fmean(values) >= 0:
        return ""
    controls = [control for control in SIDE_EFFECTS if control in text["variants"]]
    if not controls:
        return NO_CONTROL
    if not _is_lower(text, variant, baseline, part, "common") and _is_lower(
        text, variant, baseline, part
    ):
        return "the lead is not shown at the common learning rate"
    explained = [
        control
        for control in controls
        if not all(_is_lower(text, variant, control, part, at) for at in ("best", "common"))
    ]
    own = own_side_effects(variant)
    explained += [
        control
        for control in own
        if control in text["variants"] and not _is_lower(text, variant, control, part)
    ]
    asks_norm = variant == "diff" and _BARE in text["variants"]
    if asks_norm and not _is_lower(text, _BARE, baseline, part):
        explained.append(_BARE)
    if not explained and not set(own) <= text["variants"].keys():
        return NO_CONTROL
    return explained_by(explained)


def _is_lower(text: Mapping[str, Any], a: str, b: str, part: str | None, at: str = "best") -> bool:
    """By the study's own test, if it has made one, so that its sentence says the same; of a part
    also by the interval. Never where the induction phase lies between the two."""
    losses, rate = _losses(text, part, at), _rate_of(text, a, b, at)
    if a not in losses or b not in losses or gap(text["variants"], a, b, rate):
        return False
    values = _differences(losses, a, b)
    for test in text.get("tests", ()):
        pair = (test["variant"], test["baseline"])
        if pair == (a, b) and test["at"] == rate:
            whole = _losses(text, None, at)
            shown = bool(test["shown"]) and fmean(_differences(whole, a, b)) < 0
            if part is None or not shown:
                return shown
    high = mean_interval(values).high
    return high is not None and high < 0


def _rate_of(text: Mapping[str, Any], a: str, b: str, at: str) -> str:
    """At the common rate, that at the chosen ones where it is the same of both."""
    both = (text["variants"][name]["at"] for name in (a, b))
    return at if any(at in groups for groups in both) else "best"
