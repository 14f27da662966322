"""Effects from studies of text: losses, tokens and parameters. Pure; ``None`` without a record."""

import math
from collections.abc import Mapping, Sequence
from statistics import fmean
from typing import Any

from diffattn.errors import ConfigError
from diffattn.report.claims.measured import (
    Measure,
    Measured,
    explained_by,
    exponential,
    paired,
)
from diffattn.report.claims.records import TYPES, ClaimRecords
from diffattn.stats.equivalence import equivalent
from diffattn.stats.intervals import Interval, mean_interval
from diffattn.stats.power_law import fit_power_law

CONTROLS = ("softmax_half", "softmax_minus_mean")
"""Softmax attention with the scale of its output changed: what they gain, no second map gained."""


def loss_difference(
    variant: str, baseline: str, *, part: str | None = None, bound: float = 0.0, of: str = "text"
) -> Measure:
    """Validation loss of a variant minus that of another, each at its best rate, by seed.

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
        return paired(
            values, bound, uninformative=_why_not(study, losses, variant, baseline, values)
        )

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
        return str(text["verdict"]["sentence"])
    if variant not in TYPES or baseline != "softmax" or fmean(values) >= 0:
        return ""
    return explained_by(
        control
        for control in CONTROLS
        if control in losses
        and ((high := mean_interval(_differences(losses, variant, control)).high) is None
             or high >= 0)
    )  # fmt: skip


def token_ratio(variant: str, baseline: str = "softmax") -> Measure:
    """Tokens that a variant needs for the loss at which the worse of the two ends, as a share.

    Both curves reach that loss, whichever is better, so no side is favoured; the better one
    reaches it before its learning rate has decayed, which makes the saving look smaller than it is.
    """

    def measure(records: ClaimRecords) -> Measured | None:
        pairs = _paired_runs(records, variant, baseline)
        if not pairs:
            return None
        assert records.text is not None
        logs = []
        for first, second in pairs:
            a, b = records.curves[first], records.curves[second]
            loss = max(a[-1][1], b[-1][1])
            logs.append(math.log(_tokens_to(a, loss) / _tokens_to(b, loss)))
        losses = _losses(records.text, None)
        why = _why_not(records.text, losses, variant, baseline, logs)
        return exponential(paired(logs, 0.0, uninformative=why))

    return measure


def _paired_runs(records: ClaimRecords, variant: str, baseline: str) -> list[tuple[str, str]]:
    if records.text is None or not {variant, baseline} <= set(records.text["variants"]):
        return []
    runs = (records.text["variants"][name]["at"]["best"]["runs"] for name in (variant, baseline))
    pairs = list(zip(*runs, strict=True))
    return pairs if all(records.curves.get(run) for pair in pairs for run in pair) else []


def _tokens_to(curve: Sequence[tuple[float, float]], loss: float) -> float:
    """Tokens after which a curve first is at or below a loss, straight lines between its points."""
    before = curve[0]
    for tokens, value in curve:
        if value <= loss:
            share = 1.0 if before[1] <= loss else (before[1] - loss) / (before[1] - value)
            return max(1.0, before[0] + share * (tokens - before[0]))
        before = (tokens, value)
    return curve[-1][0]


def size_ratio(variant: str, baseline: str = "softmax") -> Measure:
    """Parameters of a variant over those of the baseline at the loss of its middle size.

    From fits of L = a N^-b + c to studies of four sizes or more; see
    :func:`diffattn.stats.equivalence.equivalent`.
    """

    def measure(records: ClaimRecords) -> Measured | None:
        points: dict[str, list[tuple[float, float]]] = {variant: [], baseline: []}
        for study in records.sizes:
            for name, found in points.items():
                if name in study["variants"]:
                    entry = study["variants"][name]
                    losses = entry["at"]["best"]["validation_loss"]["values"]
                    found.append((float(entry["parameters"]), fmean(losses)))
        if min(map(len, points.values())) < 4:
            return None
        try:
            fits = [fit_power_law(*zip(*sorted(points[n]), strict=True))
                    for n in (variant, baseline)]  # fmt: skip
            sizes = sorted(size for size, _ in points[variant])
            ratio = equivalent(sizes[len(sizes) // 2], *fits).ratio
        except ConfigError as error:  # the points bend like no power law, or do not overlap
            return Measured(effect=math.nan, low=None, high=None, n=0, of="sizes",
                            uninformative=str(error))  # fmt: skip
        wrong = [s["verdict"]["sentence"] for s in records.sizes if not s["verdict"]["informative"]]
        return Measured(
            effect=ratio.mean, low=ratio.low, high=ratio.high, n=len(sizes), of="sizes",
            p=_p_of_log(ratio, len(sizes) - 3), uninformative=wrong[0] if wrong else "",
        )  # fmt: skip

    return measure


def _p_of_log(ratio: Interval, freedom: int) -> float | None:
    """Of the test that a ratio is 1, from its interval, which is symmetric in the logarithm."""
    if ratio.low is None or ratio.high is None:
        return None
    from scipy.special import stdtr, stdtrit

    error = math.log(ratio.high / ratio.low) / 2 / stdtrit(freedom, (1 + ratio.level) / 2)
    return 2 * float(stdtr(freedom, -abs(math.log(ratio.mean)) / error)) if error else None
