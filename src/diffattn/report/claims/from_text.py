"""Effects from studies of text: losses. Pure; ``None`` without a record."""

from collections.abc import Mapping, Sequence
from statistics import fmean
from typing import Any

from diffattn.report.claims.measured import Measure, Measured, explained_by, paired
from diffattn.report.claims.records import ClaimRecords
from diffattn.report.page.wording import IMITATIONS, TYPE_NAMES
from diffattn.stats.intervals import mean_interval

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
        if study is None or variant not in losses or baseline not in losses:
            return None
        values = _differences(losses, variant, baseline)
        why = _why_not(study, losses, variant, baseline, values)
        rates = "chosen rates" if study["rates"]["variants"] else "one learning rate"
        return paired(values, bound, uninformative=why, note=rates)

    return measure


def _losses(text: Mapping[str, Any], part: str | None) -> dict[str, list[float]]:
    groups = {name: entry["at"]["best"] for name, entry in text["variants"].items()}
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
    text: Mapping[str, Any],
    losses: Mapping[str, Sequence[float]],
    variant: str,
    baseline: str,
    values: Sequence[float],
) -> str:
    """Why a difference says nothing: the study's verdict, or a control that gains as much."""
    if not text["verdict"]["informative"]:
        return str(text["verdict"]["sentence"]).removeprefix(_UNINFORMATIVE)
    if variant not in TYPE_NAMES or baseline != "softmax" or fmean(values) >= 0:
        return ""
    return explained_by(
        control
        for control in IMITATIONS
        if control in losses
        and ((high := mean_interval(_differences(losses, variant, control)).high) is None
             or high >= 0)
    )  # fmt: skip
