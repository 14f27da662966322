"""The outcome of every type in a comparison, as values; :mod:`.verdict` puts them into words."""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum

from diffattn.lab.catalog.models import (
    BASELINE,
    SIDE_EFFECTS,
    VARIANTS,
    WITHOUT_NORM,
    own_side_effects,
)
from diffattn.lab.records.text_results import AdjustedTest, At, ComparisonResults, TextDifference
from diffattn.lab.report.page import phase


class Outcome(Enum):
    """The result of one comparison with softmax attention, after Holm's adjustment."""

    BETTER = "better"
    WORSE = "worse"
    ALIKE = "no difference is shown"
    APART = "not compared"


class Reason(Enum):
    """The reason why a type's lead may be no effect of its second map."""

    CONTROL = "than {}"
    """The type is not significantly better than a control."""
    NOT_TRAINED = "than {} (not trained)"
    """A control takes no part, so that it could lead as well."""
    NORM = "without its head norm"
    """The type without its head norm is not significantly better than softmax attention."""


@dataclass(frozen=True, slots=True)
class TypeOutcome:
    """A type compared with softmax attention at one learning rate."""

    difference: TextDifference
    outcome: Outcome
    why_apart: str
    """The reason why the two are not compared; empty if they are."""
    explanations: tuple[tuple[Reason, str], ...]
    """Of a lead: reasons and controls that may explain it."""
    ablations: tuple[TextDifference, ...]
    """Of a lead: significant differences to the type without its difference, the smallest first.
    Only so much of the lead can be an effect of the difference."""

    @property
    def has_interval(self) -> bool:
        """Whether there is more than one seed."""
        return self.difference["low"] is not None


def type_names(results: ComparisonResults) -> list[str]:
    """Names of the types that were compared, in the order of tables."""
    return [name for name in results["variants"] if VARIANTS[name].role == "type"]


def difference(
    results: ComparisonResults,
    variant: str,
    baseline: str,
    at: At = "best",
    metric: str = "validation_loss",
) -> TextDifference | None:
    """The paired difference of validation losses, or of those of a part; or ``None``."""
    key = (variant, baseline, at, metric)
    for entry in results["differences"]:
        if (entry["variant"], entry["baseline"], entry["at"], entry["metric"]) == key:
            return entry
    return None


def is_significant(results: ComparisonResults, entry: Mapping[str, object]) -> bool:
    """Whether a difference is significant after the adjustment for all tests of the study."""

    def key(row: Mapping[str, object] | AdjustedTest) -> tuple[object, ...]:
        return row["variant"], row["baseline"], row["at"]

    return any(test["shown"] and key(test) == key(entry) for test in results.get("tests", ()))


def is_better(results: ComparisonResults, entry: TextDifference) -> bool:
    """Whether a variant's loss is significantly lower than that of its baseline."""
    return entry["mean"] < 0 and is_significant(results, entry)


def type_outcome(results: ComparisonResults, name: str, at: At = "best") -> TypeOutcome | None:
    """Compare a type with softmax attention; ``None`` if it has no runs at this rate.

    Args:
        results: Of a comparison of types.
        name: The type.
        at: The learning rates.
    """
    entry = difference(results, name, BASELINE, at)
    if entry is None:
        return None
    why_apart = phase.explain_gap(results["variants"], name, BASELINE, at)
    if why_apart:
        outcome = Outcome.APART
    elif not is_significant(results, entry):
        outcome = Outcome.ALIKE
    else:
        outcome = Outcome.BETTER if entry["mean"] < 0 else Outcome.WORSE
    ablations = own_side_effects(name) if at == "best" else ()
    explanations: tuple[tuple[Reason, str], ...] = ()
    significant: list[TextDifference] = []
    if outcome is Outcome.BETTER:
        explanations = _explanations(results, name, at, ablations)
        against = [difference(results, name, other) for other in ablations]
        significant = [
            other for other in against if other is not None and is_better(results, other)
        ]
        significant.sort(key=lambda other: -other["mean"])
    return TypeOutcome(entry, outcome, why_apart, explanations, tuple(significant))


def _explanations(
    results: ComparisonResults, name: str, at: At, ablations: tuple[str, ...]
) -> tuple[tuple[Reason, str], ...]:
    reasons = []
    for control in (*SIDE_EFFECTS, *ablations):
        against = difference(results, name, control, at)
        if against is None:
            reasons.append((Reason.NOT_TRAINED, control))
        elif not is_better(results, against):
            reasons.append((Reason.CONTROL, control))
    if name == "diff":
        without_norm = difference(results, WITHOUT_NORM, BASELINE)
        if without_norm is not None and not is_better(results, without_norm):
            reasons.append((Reason.NORM, WITHOUT_NORM))
    return tuple(reasons)
