"""The verdict of a comparison: whether it is informative about attention types, and in words."""

from collections.abc import Iterator, Mapping
from itertools import chain
from typing import Any

from diffattn.lab.catalog.models import (
    BASELINE,
    FLOOR,
    SIDE_EFFECTS,
    VARIANTS,
    WIDER_FLOOR,
    WITHOUT_NORM,
    own_side_effects,
    type_name,
)
from diffattn.lab.records.text_results import (
    COPIES,
    At,
    GroupResult,
    Row,
    TextDifference,
    TextResults,
    TextVerdict,
    VariantResult,
)
from diffattn.lab.report.page import phase
from diffattn.lab.report.page.wording import listing, number, p_value, plural
from diffattn.lab.studies.limits import MARGIN
from diffattn.lab.studies.text.results import LEVEL


def verdict(results: TextResults, counts: Mapping[str, Any]) -> TextVerdict:
    """Judge a comparison.

    It is uninformative if softmax attention does not beat the models without attention by
    :data:`MARGIN`, with the near end of its interval, or if a type does not beat them at all. Where
    none was trained, all must beat the n-gram count model with copies by that margin. It is
    uninformative too if one model passed the induction phase (began to copy from the context) in
    half of its seeds and another did not. In a study of ablations the phase is judged row by row.
    """
    reasons = list(_uninformative(results, counts))
    is_rows = "rows" in results
    clauses = row_clauses if is_rows else type_clauses
    details = row_details if is_rows else type_details
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
    if FLOOR in results["variants"]:
        for name in (FLOOR, WIDER_FLOOR):
            yield from _not_above(results, name)
    else:
        counted = counts[COPIES]["loss"]
        for name in (BASELINE, *type_names(results)):
            loss = _mean_loss(results["variants"][name]["at"]["best"])
            if loss > counted - MARGIN:
                yield (
                    f"{type_name(name)} does not beat a count of bigrams and copies by {MARGIN} "
                    f"nats ({loss:.3f} against {counted:.3f})"
                )
    if "rows" not in results:
        yield from _phase_gaps(results["variants"], (BASELINE, *type_names(results)))


def _phase_gaps(variants: Mapping[str, VariantResult], types: tuple[str, ...]) -> Iterator[str]:
    shares = {name: phase.share_passed(entry["at"]["best"]) for name, entry in variants.items()}
    passed = [type_name(name) for name in types if shares[name] >= phase.PASSED]
    others = [type_name(name) for name in types if shares[name] < phase.PASSED]
    if passed and others:
        yield (
            f"{' and '.join(passed)} passed the induction phase and {' and '.join(others)} did "
            "not: the losses rank who got there within these steps"
        )
    elif others and max(shares.values()) >= phase.PASSED:
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
        entry = _compared(results, name, control)
        if (entry["mean"] if entry["high"] is None else entry["high"]) >= 0:
            label = type_name(name)
            yield f"{label} does not beat {control_name(control)}: {format_difference(entry)}"


def _warnings(results: TextResults) -> Iterator[str]:
    if left_out := results.get("left_out_steps"):
        steps = listing(f"{plural(n, 'step')} of {run}" for run, n in left_out.items())
        yield f"batches were left out, and not of every model: {steps}"
    for name, sweep in results["rates"]["variants"].items():
        if not sweep["inside"]:
            yield f"the chosen learning rate of {type_name(name)} lies at the edge of its sweep"
        if not sweep.get("copies", True):
            yield f"the choice of {type_name(name)}'s learning rate is void: no copying yet"
    for name in type_names(results):
        at = results["variants"][name]["at"]
        if "common" in at and _mean_loss(at["common"]) < _mean_loss(at["best"]):
            yield (
                f"{type_name(name)} ends lower at the common learning rate than at the one that "
                "was chosen for it"
            )


def _mean_loss(group: GroupResult) -> float:
    return group["validation_loss"]["mean"]


_PARTS = {
    "repeated_bigram": "on bigrams that the context repeats",
    "first_occurrence": "on tokens new to the context",
}


def type_names(results: TextResults) -> list[str]:
    """Names of the types that were compared, in the order of tables."""
    return [name for name in results["variants"] if VARIANTS[name].role == "type"]


def difference(
    results: TextResults,
    variant: str,
    baseline: str,
    at: At = "best",
    metric: str = "validation_loss",
) -> TextDifference | None:
    """The paired difference in one metric, or ``None``. ``metric``: the loss, or a part's name."""
    key, rows = (variant, baseline, at, metric), results["differences"]
    named = ((row["variant"], row["baseline"], row["at"], row["metric"]) for row in rows)
    return next((row for row, name in zip(rows, named, strict=True) if name == key), None)


def format_difference(entry: TextDifference, *, flip: bool = False) -> str:
    """A difference with its interval, e.g. ``"−0.216 (−0.241 to −0.191)"``."""
    sign = -1 if flip else 1
    text = f"{sign * entry['mean']:+.3f}"
    if entry["low"] is None or entry["high"] is None:
        text += " (one seed: this may be chance)"
    else:
        low, high = sorted((sign * entry["low"], sign * entry["high"]))
        text += f" ({low:+.3f} to {high:+.3f})"
    return text.replace("-", "−")


def control_name(name: str) -> str:
    """The first part of a control's summary."""
    return VARIANTS[name].summary.split(":")[0]


def type_clauses(results: TextResults) -> Iterator[str]:
    """Clauses for each type minus the Transformer, and for the control with the lowest loss."""
    names = sorted(type_names(results), key=lambda name: _compared(results, name, BASELINE)["mean"])
    gaps = {name: phase.explain_gap(results["variants"], name, BASELINE) for name in names}
    if not all(gaps.values()):
        yield ", ".join(
            f"{type_name(name)} {_against(results, name, BASELINE)}"
            for name, why in gaps.items()
            if not why
        )
    for name, why in gaps.items():
        if why:
            yield f"{type_name(name)} is not compared, as {why}"
    controls = [name for name in SIDE_EFFECTS if difference(results, name, BASELINE)]
    if controls:
        lowest = min(controls, key=lambda name: _compared(results, name, BASELINE)["mean"])
        yield f"{control_name(lowest)} {_against(results, lowest, BASELINE)}"


def type_details(results: TextResults) -> list[str]:
    """One sentence per type with all of its numbers, one for the controls, one on the tests."""
    sentences = [
        f"{type_name(name)}: {'; '.join(_measured(results, name))}" for name in type_names(results)
    ]
    controls = [
        f"{control_name(name)} {_against(results, name, BASELINE)}"
        for name in (*SIDE_EFFECTS, WITHOUT_NORM)
        if difference(results, name, BASELINE)
    ]
    if controls:
        sentences.append(f"Controls minus the Transformer: {'; '.join(controls)}")
    level = 100 * results["differences"][0]["level"]
    sentences.append(
        f"Nats per token, {level:.0f} % intervals, not adjusted. p is adjusted by Holm over the "
        f"{len(results['endpoints'])} tests of types by loss and by tokens; {LEVEL:g} counts"
    )
    return [f"{sentence}." for sentence in sentences]


def row_clauses(results: TextResults) -> Iterator[str]:
    """Clauses: rows whose interval excludes 0, number of other rows, number of rows left out."""
    compared, apart = _split_rows(results)
    with_spread, apart_from_zero = 0, []
    for row, entry in compared:
        low, high = entry["low"], entry["high"]
        if low is not None and high is not None:
            with_spread += 1
            if not low <= 0 <= high:
                apart_from_zero.append(f"{_row_name(row)} {format_difference(entry)}")
    if compared and not with_spread:
        yield f"{plural(len(results['rows']), 'row')} with one seed each: any of them may be chance"
        return
    if apart_from_zero:
        yield f"intervals that leave out 0: {'; '.join(apart_from_zero)}"
    if others := with_spread - len(apart_from_zero):
        yield f"{others} of {plural(len(results['rows']), 'interval')} hold 0"
    if count := sum(map(len, apart.values())):
        yield f"{count} {'is' if count == 1 else 'are'} not compared"


def row_details(results: TextResults) -> list[str]:
    """The rows that are not compared, by reason."""
    _, apart = _split_rows(results)
    return [f"Not compared, as {why}: {'; '.join(rows)}." for why, rows in apart.items()]


def _compared(results: TextResults, name: str, other: str, at: At = "best") -> TextDifference:
    entry = difference(results, name, other, at)
    assert entry is not None, f"{name} is compared with {other}"
    return entry


def _against(results: TextResults, name: str, other: str, at: At = "best") -> str:
    return format_difference(_compared(results, name, other, at))


def _measured(results: TextResults, name: str) -> Iterator[str]:
    variants = results["variants"]
    if why := phase.explain_gap(variants, name, BASELINE):
        yield f"not compared with the Transformer, as {why}"
    tests = {entry["measure"]: entry for entry in results["endpoints"] if entry["variant"] == name}
    for measure, entry in tests.items():
        p = "" if entry["p_holm"] is None else f", p {p_value(entry['p_holm'])}"
        if measure == "loss":
            yield f"{_against(results, name, BASELINE)}{p}"
        elif min(entry["values"]) >= 1:
            yield f"the Transformer's loss in no run{p}"
        else:
            share = f"{100 * entry['mean']:.0f} %"
            if entry["low"] is not None and entry["high"] is not None:
                share += f" ({100 * entry['low']:.0f} to {100 * entry['high']:.0f})"
            reached = sum(value < 1 for value in entry["values"])
            runs = "" if reached == entry["n"] else f", in {reached} of {entry['n']} runs"
            yield f"the Transformer's loss with {share} of the tokens{runs}{p}"
    for part, words in _PARTS.items():
        if of_part := difference(results, name, BASELINE, metric=part):
            yield f"{words} {format_difference(of_part)}"
    passed = [phase.when_passed(variants[side]["at"]["best"]) for side in (name, BASELINE)]
    if any(passed):
        yield f"begins to copy {passed[0] or 'in no run'}, the Transformer {passed[1] or 'in none'}"
    for lead in results.get("adjusted_leads", ()):
        if lead["variant"] == name:
            mean, low, high = (number(lead[k], 3, signed=True) for k in ("mean", "low", "high"))
            yield f"adjusted for the step at which copying begins {mean} ({low} to {high})"
    if difference(results, name, BASELINE, "common"):
        if why := phase.explain_gap(variants, name, BASELINE, "common"):
            yield f"not compared at the Transformer's learning rate, as {why}"
        yield f"at the Transformer's learning rate {_against(results, name, BASELINE, 'common')}"
    controls = [
        other
        for other in (*own_side_effects(name), *SIDE_EFFECTS)
        if difference(results, name, other)
    ]
    if controls:
        yield "minus its controls: " + listing(
            f"{control_name(other)} {_against(results, name, other)}" for other in controls
        )


def _split_rows(
    results: TextResults,
) -> tuple[list[tuple[Row, TextDifference]], dict[str, list[str]]]:
    """Rows that are compared, with their differences; and reason -> names of the other rows.

    A row is not compared if a side diverged. Nor if a side has not passed the induction phase
    while another model has: then the losses only show which models copy already."""
    compared: list[tuple[Row, TextDifference]] = []
    apart: dict[str, list[str]] = {}
    for row in results["rows"]:
        pair = (row["variant"], row["baseline"])
        why = phase.explain_divergence(results.get("diverged", {}), *pair)
        if why := why or phase.explain_gap(results["variants"], *pair, row["at"]):
            apart.setdefault(why, []).append(_row_name(row))
            continue
        compared.append((row, _compared(results, *pair, row["at"])))
    return compared, apart


def _row_name(row: Row) -> str:
    where = " at the common learning rate" if row["at"] == "common" else ""
    return f"{type_name(row['variant'])} against {type_name(row['baseline'])}{where}"
