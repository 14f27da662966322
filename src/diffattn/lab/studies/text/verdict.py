"""Whether a comparison says anything, and what."""

from collections.abc import Iterator, Mapping
from typing import Any

from diffattn.lab.catalog.models import BASELINE, FLOOR, WIDER_FLOOR, type_name
from diffattn.lab.report.page import phase
from diffattn.lab.report.page.wording import listing, plural
from diffattn.lab.studies.limits import MARGIN
from diffattn.lab.studies.text.rows import rows_details, rows_said
from diffattn.lab.studies.text.sentence import (
    control_name,
    details,
    difference,
    interval_in_words,
    lead,
    setting,
    types_of,
)


def verdict(results: Mapping[str, Any]) -> dict[str, Any]:
    """Whether the comparison is informative, and its result.

    It is not if the softmax model does not beat the models without attention by :data:`MARGIN`
    (with its whole interval), if a type does not beat one at all, or if one type has passed the
    induction phase in most seeds and another has not: then what is compared is who leaves a
    plateau first. Rows of an ablation are asked that one by one.

    Args:
        results: Of :func:`diffattn.lab.studies.text.results.comparison_results`.

    Returns:
        ``sentence`` and, of an informative comparison, ``details``: every difference that it sums
        up, and how they were tested; of rows those that it only counts.
    """
    reasons, of_rows = list(_reasons(results)), "rows" in results
    said, in_full = (rows_said, rows_details) if of_rows else (lead, details)
    sentence = (
        f"Uninformative about attention types: {reasons[0]}."
        if reasons
        else f"{setting(results)}: {'; '.join(said(results))}."
    )
    return {
        "informative": not reasons,
        "sentence": sentence,
        "details": [] if reasons else in_full(results),
        "reasons": reasons + list(_warnings(results)),
        "margin": MARGIN,
    }


def _reasons(results: Mapping[str, Any]) -> Iterator[str]:
    """Why nothing can be said of the types."""
    if FLOOR not in results["variants"]:
        yield "no model without attention was trained beside them"
        return
    for name in (FLOOR, WIDER_FLOOR):
        yield from _not_above(results, name)
    if "rows" in results:  # whose phases are looked at row by row
        return
    shares = {
        name: phase.share_passed(results["variants"][name]["at"]["best"])
        for name in (BASELINE, *types_of(results))
    }
    passed = {name: share for name, share in shares.items() if share is not None}
    late = [type_name(name) for name, share in passed.items() if share < phase.MOST]
    if late and len(late) < len(passed):
        early = [type_name(name) for name, share in passed.items() if share >= phase.MOST]
        yield (
            f"{' and '.join(early)} passed the induction phase and {' and '.join(late)} did not: "
            "the losses rank who got there within these steps"
        )
    every = (phase.share_passed(of["at"]["best"]) for of in results["variants"].values())
    if late and len(late) == len(passed) and any((share or 0) >= phase.MOST for share in every):
        yield "a control passed the induction phase, and neither softmax attention nor a type did"


def _not_above(results: Mapping[str, Any], control: str) -> Iterator[str]:
    """What attention does not gain over a control without it, where that takes part."""
    floor = difference(results, control, BASELINE)
    if floor is None:
        return
    what = control_name(control)
    least = floor["mean"] if floor["low"] is None else floor["low"]
    if least < MARGIN:
        yield (
            f"softmax attention does not beat {what} by {MARGIN} nats "
            f"({interval_in_words(floor, flip=True)})"
        )
    for name in types_of(results):
        row = difference(results, name, control)
        assert row is not None, "every type is compared with the control"
        most = row["mean"] if row["high"] is None else row["high"]
        if most >= 0:
            yield f"{type_name(name)} does not beat {what} ({interval_in_words(row)})"


def _warnings(results: Mapping[str, Any]) -> Iterator[str]:
    """What a reader must know besides."""
    if left_out := results.get("left_out_steps"):
        which = listing(f"{plural(n, 'step')} of {run}" for run, n in left_out.items())
        yield f"batches were left out, and not of every model: {which}"
    for name, sweep in results["rates"]["variants"].items():
        if not sweep["inside"]:
            yield f"the chosen learning rate of {type_name(name)} lies at the edge of its sweep"
    for name in types_of(results):
        at = results["variants"][name]["at"]
        if "common" in at and _mean_loss(at["common"]) < _mean_loss(at["best"]):
            yield (
                f"{type_name(name)} ends lower at the common learning rate than at the one that "
                "was chosen for it"
            )


def _mean_loss(group: Mapping[str, Any]) -> float:
    return float(group["validation_loss"]["mean"])
