"""The verdict of a comparison: whether it says anything about attention types, and its result."""

from collections.abc import Iterator, Mapping
from itertools import chain
from typing import Any

from diffattn.lab.catalog.models import BASELINE, FLOOR, WIDER_FLOOR, type_name
from diffattn.lab.records.text_results import (
    COPIES,
    GroupResult,
    TextResults,
    TextVerdict,
    VariantResult,
)
from diffattn.lab.report.page import phase
from diffattn.lab.report.page.wording import listing, plural
from diffattn.lab.studies.limits import MARGIN
from diffattn.lab.studies.text import wording
from diffattn.lab.studies.text.wording import (
    control_name,
    difference,
    format_difference,
    type_names,
)


def verdict(results: TextResults, counts: Mapping[str, Any] | None = None) -> TextVerdict:
    """Judge a comparison.

    It is uninformative if softmax attention does not beat the models without attention by
    :data:`MARGIN`, with the near end of its interval, or if a type does not beat them at all. Where
    none was trained, all must beat the n-gram count model with copies by that margin. It is
    uninformative too if one model passed the induction phase (began to copy from the context) in
    half of its seeds and another did not: the losses then only rank which began sooner. In a study
    of ablations the phase is judged row by row.

    Args:
        counts: Count model -> its results, as ``count_model_results`` returns them.
    """
    reasons = list(_uninformative(results, counts or {}))
    is_rows = "rows" in results
    clauses = wording.row_clauses if is_rows else wording.type_clauses
    details = wording.row_details if is_rows else wording.type_details
    if reasons:
        sentence = f"Uninformative about attention types: {reasons[0]}."
    else:
        sentence = f"{_setting(results)}: {'; '.join(clauses(results))}."
    return {
        "informative": not reasons,
        "sentence": sentence,
        "details": [] if reasons else details(results),
        "reasons": [*reasons, *_warnings(results)],
        "margin": MARGIN,
    }


def _setting(results: TextResults) -> str:
    variants = results["variants"]
    used = {entry["at"]["best"]["learning_rate"] for entry in variants.values()}
    is_shared = not results["rates"]["variants"] and len(used) == 1
    rates = (
        "all at one learning rate" if is_shared else "each type at the learning rate chosen for it"
    )
    groups = chain.from_iterable(entry["at"].values() for entry in variants.values())
    steps = chain.from_iterable(group["phase_steps"] for group in groups)
    phases = "" if any(s is not None for s in steps) else ", none of them past the induction phase"
    unit = ", loss minus the Transformer's in nats per token"
    if "rows" in results:
        unit = f" (nats per token, {plural(len(results['rows']), 'comparison')})"
    return (
        f"At {variants[BASELINE]['parameters'] / 1e6:.1f} million parameters and "
        f"{results['tokens']:,} tokens, {rates}{phases}{unit}"
    )


def _uninformative(results: TextResults, counts: Mapping[str, Any]) -> Iterator[str]:
    """Reasons why nothing can be said about the types."""
    if FLOOR in results["variants"]:
        for name in (FLOOR, WIDER_FLOOR):
            yield from _not_above(results, name)
    elif COPIES in counts:
        yield from _not_above_counts(results, counts[COPIES]["loss"])
    else:
        yield "no model without attention was trained beside them"
        return
    if "rows" not in results:
        yield from _phase_gaps(results["variants"], (BASELINE, *type_names(results)))


def _phase_gaps(variants: Mapping[str, VariantResult], types: tuple[str, ...]) -> Iterator[str]:
    shares = {name: phase.share_passed(entry["at"]["best"]) for name, entry in variants.items()}
    known = {name: share for name in types if (share := shares[name]) is not None}
    passed = [type_name(name) for name, share in known.items() if share >= phase.PASSED]
    others = [type_name(name) for name, share in known.items() if share < phase.PASSED]
    if passed and others:
        yield (
            f"{' and '.join(passed)} passed the induction phase and {' and '.join(others)} did "
            "not: the losses rank who got there within these steps"
        )
    elif others and any((share or 0) >= phase.PASSED for share in shares.values()):
        yield "a control passed the induction phase, and neither softmax attention nor a type did"


def _not_above(results: TextResults, control: str) -> Iterator[str]:
    """Reasons why attention gains too little over a control without it."""
    floor = difference(results, control, BASELINE)
    if floor is None:
        return
    least = floor["mean"] if floor["low"] is None else floor["low"]
    if least < MARGIN:
        yield (
            f"softmax attention does not beat {control_name(control)} by {MARGIN} nats: "
            f"{format_difference(floor, flip=True)}"
        )
    for name in type_names(results):
        entry = difference(results, name, control)
        assert entry is not None, "every type is compared with the control"
        if (entry["mean"] if entry["high"] is None else entry["high"]) >= 0:
            label = type_name(name)
            yield f"{label} does not beat {control_name(control)}: {format_difference(entry)}"


def _not_above_counts(results: TextResults, counted: float) -> Iterator[str]:
    """Reasons why attention gains too little over the n-gram count model with copies."""
    for name in (BASELINE, *type_names(results)):
        loss = _mean_loss(results["variants"][name]["at"]["best"])
        if loss > counted - MARGIN:
            yield (
                f"{type_name(name)} does not beat a count of bigrams and copies by {MARGIN} nats "
                f"({loss:.3f} against {counted:.3f})"
            )


def _warnings(results: TextResults) -> Iterator[str]:
    if left_out := results.get("left_out_steps"):
        steps = listing(f"{plural(n, 'step')} of {run}" for run, n in left_out.items())
        yield f"batches were left out, and not of every model: {steps}"
    for name, sweep in results["rates"]["variants"].items():
        if not sweep["inside"]:
            yield f"the chosen learning rate of {type_name(name)} lies at the edge of its sweep"
    for name in type_names(results):
        at = results["variants"][name]["at"]
        if "common" in at and _mean_loss(at["common"]) < _mean_loss(at["best"]):
            yield (
                f"{type_name(name)} ends lower at the common learning rate than at the one that "
                "was chosen for it"
            )


def _mean_loss(group: GroupResult) -> float:
    return group["validation_loss"]["mean"]
