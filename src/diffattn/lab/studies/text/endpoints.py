"""Tests of every type against the Transformer, and its lead if both began to copy at one step.

Two measures per type were fixed before all studies: the loss at equal tokens, and the share of the
tokens with which a type reaches the Transformer's final loss. Their p-values are adjusted together.
All other differences are reported without a test.
"""

import itertools
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from diffattn.lab.catalog.models import BASELINE, VARIANTS
from diffattn.lab.records.text_results import AdjustedLead, Endpoint, TextDifference, VariantResult
from diffattn.lab.report.page.phase import explain_gap
from diffattn.lab.stats.intervals import mean_of_seeds, t_quantile
from diffattn.lab.stats.paired import holm, paired_t_test

LEVEL = 0.05
"""Significance level of adjusted p-values."""
Curve = Sequence[tuple[int, float]]
"""Pairs of a step and a loss, one for each evaluation of a run."""


def type_endpoints(
    variants: Mapping[str, VariantResult],
    differences: Iterable[TextDifference],
    curves: Mapping[str, Curve],
) -> list[Endpoint]:
    """Test every type against the Transformer by both measures, at its chosen rate.

    If a model has not begun to copy while another has, its pair enters Holm's adjustment with a
    p-value of 1.
    """
    rows = [
        (entry["variant"], "loss", entry["values"])
        for entry in differences
        if VARIANTS[entry["variant"]].role == "type"
        and (entry["baseline"], entry["at"]) == (BASELINE, "best")
        and entry["metric"] == "validation_loss"
    ]
    rows += [
        (name, "tokens", [share - 1 for share in shares])  # tested against a share of 1
        for name, _, _ in rows
        if (shares := _token_shares(variants, name, curves))
    ]
    p_values = [paired_t_test(values) for _, _, values in rows]
    counted = [
        1.0 if explain_gap(variants, name, BASELINE) else p
        for (name, _, _), p in zip(rows, p_values, strict=True)
        if p is not None
    ]
    adjusted = iter(holm(counted))
    entries: list[Any] = [
        {
            "variant": name,
            "measure": measure,
            **mean_of_seeds(values if measure == "loss" else [value + 1 for value in values]),
            "p": p,
            "p_holm": None if p is None else next(adjusted),
        }
        for (name, measure, values), p in zip(rows, p_values, strict=True)
    ]
    return entries


def adjusted_leads(
    variants: Mapping[str, VariantResult], starts: Mapping[str, float | None]
) -> list[AdjustedLead]:
    """Losses minus the Transformer's, adjusted to an equal step at which copying begins.

    Least squares over all runs at chosen rates: one constant per variant and one slope of the final
    loss over the step at which a run begins to copy. Variants with a run that does not copy are
    left out.

    ``starts``: name of a run -> the step at which it begins to copy.

    Returns:
        One entry per variant, with Student's t interval; none if the Transformer does not copy, or
        if the runs are too few for an interval.
    """
    groups = {
        name: entry["at"]["best"]
        for name, entry in variants.items()
        if all(starts.get(run) is not None for run in entry["at"]["best"]["runs"])
    }
    names = list(groups)
    runs = [(name, run) for name in names for run in groups[name]["runs"]]
    freedom = len(runs) - len(names) - 1
    if BASELINE not in names or freedom < 1:
        return []
    design = np.zeros((len(runs), len(names) + 1))
    for i, (name, run) in enumerate(runs):
        design[i, names.index(name)], design[i, -1] = 1.0, starts[run] or 0.0
    losses = np.concatenate([group["validation_loss"]["values"] for group in groups.values()])
    solution, _, rank, _ = np.linalg.lstsq(design, losses, rcond=None)
    if rank < design.shape[1]:
        return []
    spread = ((losses - design @ solution) ** 2).sum() / freedom
    covariance = spread * np.linalg.inv(design.T @ design)
    base = names.index(BASELINE)
    leads: list[AdjustedLead] = []
    for i, name in enumerate(names):
        if i != base:
            variance = covariance[i, i] + covariance[base, base] - 2 * covariance[i, base]
            half = t_quantile(0.975, freedom) * float(variance) ** 0.5
            mean = float(solution[i] - solution[base])
            leads.append({"variant": name, "mean": mean, "low": mean - half, "high": mean + half})
    return leads


def loss_curve(rows: Iterable[dict[str, Any]], part: str | None = None) -> Curve:
    """The validation losses of a run, or those of a part such as ``"repeated_bigram"``."""
    key = part or "validation_loss"
    losses = [(row["step"], row | row.get("validation_parts", {})) for row in rows]
    return [(step, of_step[key]) for step, of_step in losses if key in of_step]


def phase_step(curve: Curve, threshold: float) -> int | None:
    """The step at which a run begins to copy: the first of two evaluations in a row whose loss on
    repeated bigrams is below ``threshold``. Two, so that one lucky evaluation does not count."""
    for (step, first), (_, second) in itertools.pairwise(curve):
        if max(first, second) < threshold:
            return int(step)
    return None


def crossing(curve: Curve, loss: float) -> float | None:
    """Step at which a curve first falls to a loss, linearly interpolated, or ``None``."""
    if curve and curve[0][1] <= loss:
        return float(curve[0][0])
    for (step, above), (later, below) in itertools.pairwise(curve):
        if below <= loss:
            return step + (later - step) * (above - loss) / (above - below)
    return None


def _token_shares(
    variants: Mapping[str, VariantResult], name: str, curves: Mapping[str, Curve]
) -> list[float]:
    """Share of the tokens with which each seed reaches the Transformer's final loss; 1 if never.

    The learning rate is still high at that step: a run planned to end there would need fewer.
    """
    groups = [variants[side]["at"]["best"] for side in (name, BASELINE)]
    if any(not curves.get(run) for run in groups[0]["runs"]):
        return []
    shares = []
    for run, loss in zip(groups[0]["runs"], groups[1]["validation_loss"]["values"], strict=False):
        step = crossing(curves[run], loss)
        shares.append(1.0 if step is None else step / curves[run][-1][0])
    return shares
