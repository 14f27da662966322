"""The comparisons that a study of ablations or ranks is made for."""

from collections.abc import Collection, Mapping, Sequence

from diffattn.lab.catalog.models import BASELINE, FLOOR, RANK, VARIANTS, WIDE_NORM
from diffattn.lab.records.text_results import Row, TextDifference, VariantResult


def compared_rows(
    differences: Sequence[TextDifference],
    variants: Mapping[str, VariantResult],
    diverged: Collection[str] = (),
) -> list[Row]:
    """Every type and every ablation against its baseline.

    V2 also stands against softmax with 1.5 times the heads, and V1 and Shared DIFF against one map
    with their norm, at one rate. Each rank stands against rank 8, that against V1, and λ_init
    against the schedule. Other differences are for reading.

    Args:
        diverged: Variants of which a run diverged; they are in neither.
    """
    members = {*variants, *diverged}
    rows: list[Row] = [
        {"variant": entry["variant"], "baseline": entry["baseline"], "at": entry["at"]}
        for entry in differences
        if _is_row(entry, variants, members)
    ]
    rows += [
        {"variant": name, "baseline": other, "at": "best"}
        for name in (*variants, *diverged)
        for other in _baselines(name, members)
        if {name, other} & set(diverged) and other in members
    ]
    return rows


def _is_row(
    entry: TextDifference, variants: Mapping[str, VariantResult], members: Collection[str]
) -> bool:
    name, other = entry["variant"], entry["baseline"]
    if other not in _baselines(name, members) or entry["metric"] != "validation_loss":
        return False
    # One map with a type's norm stands at softmax attention's rate: there the type does, too.
    is_common = other == WIDE_NORM and "common" in variants[name]["at"]
    return entry["at"] == ("common" if is_common else "best")


def _baselines(name: str, members: Collection[str]) -> tuple[str, ...]:
    variant = VARIANTS[name]
    is_type = variant.role == "type"
    if name in (BASELINE, FLOOR) or (RANK in members and is_type):
        return ()
    return (variant.compared_with, *(variant.also if is_type else ()))
