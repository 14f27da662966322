"""The result of a comparison of types in words: clauses of a sentence, and every difference."""

from collections.abc import Iterator
from statistics import median

from diffattn.lab.catalog.models import BASELINE, SIDE_EFFECTS, VARIANTS, type_name
from diffattn.lab.records.text_results import ComparisonResults, TextDifference
from diffattn.lab.report.page.wording import listing
from diffattn.lab.studies.text.outcomes import (
    Outcome,
    TypeOutcome,
    difference,
    is_better,
    is_significant,
    type_names,
    type_outcome,
)
from diffattn.lab.studies.text.rows import LEVEL

_COMMON = "at the common learning rate"


def clauses(results: ComparisonResults) -> Iterator[str]:
    """Describe each type at its chosen rate, and where the common rate shows something else.

    Args:
        results: Of a comparison of types.
    """
    alike: list[str] = []
    apart: dict[str, list[str]] = {}
    for name in type_names(results):
        best, common = type_outcome(results, name), type_outcome(results, name, "common")
        assert best is not None, "every type is compared with softmax attention"
        aside = ""
        if common is not None and common.has_interval and common.outcome is not best.outcome:
            aside = f"{common.outcome.value} {_COMMON}"
        label = type_name(name) + (f" ({aside})" if aside else "")
        if best.outcome is Outcome.APART:
            apart.setdefault(best.why_apart, []).append(label)
        elif not best.has_interval:
            yield _describe(results, best)
        elif best.outcome is Outcome.ALIKE:
            alike.append(label)
        else:
            yield _headline(best, common) + (f", {aside}" if aside else "")
    if alike:
        yield f"no difference to softmax attention is shown for {listing(alike)}"
    for why, names in apart.items():
        yield f"not compared with softmax attention, as {why}: {listing(names)}"
    yield from _leading_controls(results)


def details(results: ComparisonResults) -> list[str]:
    """Describe each type in full, at both rates, and how it was tested.

    Args:
        results: Of a comparison of types.
    """
    sentences = []
    for name in type_names(results):
        for at, prefix in (("best", ""), ("common", f"{_COMMON} ")):
            outcome = (
                type_outcome(results, name, at) if at in results["variants"][name]["at"] else None
            )
            if outcome is not None:
                sentences.append(prefix + _describe(results, outcome))
    level = 100 * results["differences"][0]["level"]
    tests = (
        f"nats per token, {level:.0f} % intervals, unadjusted; what is shown stands among "
        f"{len(results['tests'])} comparisons, p at most {LEVEL:g} after Holm's adjustment"
    )
    sentences += [*_leading_controls(results), tests]
    return [f"{sentence[0].upper()}{sentence[1:]}." for sentence in sentences]


def control_name(name: str) -> str:
    """The first part of a control's summary."""
    return VARIANTS[name].summary.split(":")[0]


def format_difference(entry: TextDifference, *, flip: bool = False) -> str:
    """A difference with its interval and its number of seeds.

    Args:
        entry: The difference.
        flip: With the other sign.
    """
    seeds = "one seed" if entry["low"] is None else f"{len(entry['values'])} seeds"
    return f"{_format_interval(entry, flip=flip)}, {seeds}"


def _format_interval(entry: TextDifference, *, flip: bool = False) -> str:
    sign = -1 if flip else 1
    text = f"{sign * entry['mean']:+.3f}"
    if entry["low"] is not None and entry["high"] is not None:
        low, high = sorted((sign * entry["low"], sign * entry["high"]))
        text += f", {low:+.3f} to {high:+.3f}"
    return text.replace("-", "−")


def _headline(best: TypeOutcome, common: TypeOutcome | None) -> str:
    """A significant difference, the closest ablation and all that may explain a lead."""
    explanations = _format_explanations(best)
    if common is not None and common.outcome is best.outcome is Outcome.BETTER:
        new = [words for words in _format_explanations(common) if words not in explanations]
        explanations += [f"{words} {_COMMON}" for words in new]
    text = f"{_format_lead(best)} ({format_difference(best.difference)})"
    return text + "".join(_format_ablations(best)[:1]) + _format_reservation(explanations)


def _leading_controls(results: ComparisonResults) -> Iterator[str]:
    against = ((name, difference(results, name, BASELINE)) for name in SIDE_EFFECTS)
    leading = [
        f"{control_name(name)} ({format_difference(entry)})"
        for name, entry in against
        if entry is not None and is_better(results, entry)
    ]
    if leading:
        yield f"softmax attention is beaten without a second map that learns: {listing(leading)}"


def _describe(results: ComparisonResults, of_type: TypeOutcome) -> str:
    """A type beside softmax attention at one rate, in full."""
    entry = of_type.difference
    label, numbers = type_name(entry["variant"]), _format_numbers(results, entry)
    if of_type.outcome is Outcome.APART:
        return f"{label} is not compared with softmax attention, as {of_type.why_apart} ({numbers})"
    if not of_type.has_interval:
        side = "below" if entry["mean"] < 0 else "above"
        size = f"{abs(entry['mean']):.3f} nats per token"
        return f"{label} ends {size} {side} softmax attention (one seed: this may be chance)"
    if of_type.outcome is Outcome.ALIKE:
        return f"no difference to softmax attention is shown for {label} ({numbers})"
    reservation = _format_reservation(_format_explanations(of_type))
    return f"{_format_lead(of_type)} ({numbers}){''.join(_format_ablations(of_type))}{reservation}"


def _format_lead(of_type: TypeOutcome) -> str:
    entry = of_type.difference
    size = f"{abs(entry['mean']):.3f} nats per token"
    return f"{type_name(entry['variant'])} is {size} {of_type.outcome.value} than softmax attention"


def _format_explanations(of_type: TypeOutcome) -> list[str]:
    return [reason.value.format(control_name(name)) for reason, name in of_type.explanations]


def _format_reservation(explanations: list[str]) -> str:
    return f", not shown to be better {listing(explanations)}" if explanations else ""


def _format_ablations(of_type: TypeOutcome) -> list[str]:
    return [
        f", {-entry['mean']:.3f} better than {control_name(entry['baseline'])} "
        f"({format_difference(entry)})"
        for entry in of_type.ablations
    ]


def _format_numbers(results: ComparisonResults, entry: TextDifference) -> str:
    """A difference to softmax attention, that on tokens new to the context, and the phases.

    No copying helps on tokens new to the context. A lead in passing the induction phase is a lead
    in loss as long as all models still learn.
    """
    text = format_difference(entry)
    new = difference(results, entry["variant"], BASELINE, entry["at"], "first_occurrence")
    if new is not None and (entry["low"] is None or is_significant(results, entry)):
        text += f"; on tokens new to the context {_format_interval(new)}"
    variants = results["variants"]
    groups = (variants[entry["variant"]]["at"][entry["at"]], variants[BASELINE]["at"]["best"])
    steps = [[step for step in group["phase_steps"] if step is not None] for group in groups]
    runs = [len(group["phase_steps"]) for group in groups]
    if [len(passed) for passed in steps] == runs:
        here, there = (f"{median(passed):,.0f}" for passed in steps)
        text += f"; phase passed at step {here} against {there}, medians"
    elif any(steps):
        here, there = (f"{len(passed)} of {n}" for passed, n in zip(steps, runs, strict=True))
        text += f"; phase passed in {here} runs against {there}"
    return text
