"""The differences that a study on text tests together, with Holm's adjusted p-values."""

from collections.abc import Collection, Iterator, Mapping, Sequence

from diffattn.lab.catalog.models import (
    BASELINE,
    FLOOR,
    RANK,
    SIDE_EFFECTS,
    VARIANTS,
    WIDE_NORM,
    WITHOUT_NORM,
    own_side_effects,
)
from diffattn.lab.records.text_results import AdjustedTest, TextDifference, VariantResult
from diffattn.lab.report.page import phase
from diffattn.lab.stats.multiple import holm
from diffattn.lab.stats.paired import paired_t_test

LEVEL = 0.05
"""Adjusted p-values up to it count."""


def row_tests(
    differences: Sequence[TextDifference],
    variants: Mapping[str, VariantResult],
    diverged: Collection[str] = (),
) -> list[AdjustedTest]:
    """The comparisons that a study of ablations is made for.

    Every type and every ablation is tested against its baseline, V2 also against softmax with 1.5
    times the heads, and V1 and Shared DIFF also against one map with their norm, at one rate. Each
    rank is tested against rank 8, that against V1, and λ_init against the schedule. Types are
    tested elsewhere. Other differences are for reading.

    Args:
        differences: Of :func:`diffattn.lab.studies.text.results.comparison_results`.
        variants: Of the same.
        diverged: Variants of which a run diverged; they are in neither.

    Returns:
        One test per row; its p-values are ``None`` with one seed. Some rows are not compared: one
        side diverged, or has not passed the induction phase where others have. They stay in the
        family with a p-value of 1, so that no other row becomes easier to show.
    """
    members = {*variants, *diverged}
    rows = [entry for entry in differences if _is_row(entry, variants, members)]
    untested: list[AdjustedTest] = [
        {"variant": name, "baseline": other, "at": "best", "p": None, "p_holm": 1.0, "shown": False}
        for name in (*variants, *diverged)
        for other in _row_baselines(name, members)
        if {name, other} & set(diverged) and other in members
    ]
    return [*_adjusted(rows, variants, num_others=len(untested)), *untested]


def type_tests(
    differences: Sequence[TextDifference], variants: Mapping[str, VariantResult]
) -> list[AdjustedTest]:
    """The comparisons that the verdict on attention types rests on.

    Every type is tested against softmax attention and its imitations, at its chosen rate and at the
    common one; against itself without its difference at its chosen rate, which both have. The
    imitations and V1 without head norm are tested against softmax attention.

    Args:
        differences: Of :func:`diffattn.lab.studies.text.results.comparison_results`.
        variants: Of the same.
    """
    return list(_adjusted([entry for entry in differences if _is_of_types(entry)], variants))


def _adjusted(
    entries: Sequence[TextDifference], variants: Mapping[str, VariantResult], num_others: int = 0
) -> Iterator[AdjustedTest]:
    """Adjust the tests of entries together with ``num_others`` of p = 1."""
    p_values = [paired_t_test(entry["values"]) for entry in entries]
    family = [
        1.0 if phase.explain_gap(variants, entry["variant"], entry["baseline"], entry["at"]) else p
        for entry, p in zip(entries, p_values, strict=True)
        if p is not None
    ]
    adjusted = iter(holm([*family, *[1.0] * num_others]))
    for entry, p in zip(entries, p_values, strict=True):
        p_holm = None if p is None else next(adjusted)
        yield {
            "variant": entry["variant"],
            "baseline": entry["baseline"],
            "at": entry["at"],
            "p": p,
            "p_holm": p_holm,
            "shown": p_holm is not None and p_holm <= LEVEL,
        }


def _is_row(
    entry: TextDifference, variants: Mapping[str, VariantResult], members: Collection[str]
) -> bool:
    name, other = entry["variant"], entry["baseline"]
    if other not in _row_baselines(name, members) or entry["metric"] != "validation_loss":
        return False
    # One map with a type's norm stands at softmax attention's rate: there the type does, too.
    is_common = other == WIDE_NORM and "common" in variants[name]["at"]
    return entry["at"] == ("common" if is_common else "best")


def _row_baselines(name: str, members: Collection[str]) -> tuple[str, ...]:
    """The variants that a row is tested against."""
    variant = VARIANTS[name]
    is_type = variant.role == "type"
    if name in (BASELINE, FLOOR) or (RANK in members and is_type):
        return ()
    return (variant.compared_with, *(variant.also if is_type else ()))


def _is_of_types(entry: TextDifference) -> bool:
    name, other = entry["variant"], entry["baseline"]
    if entry["metric"] != "validation_loss":
        return False
    if VARIANTS[name].role == "type":
        return other in (BASELINE, *SIDE_EFFECTS, *own_side_effects(name))
    return other == BASELINE and name in (*SIDE_EFFECTS, WITHOUT_NORM)
