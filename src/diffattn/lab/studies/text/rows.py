"""What a study tests together: the differences that its sentence speaks of."""

from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any

from diffattn.lab.catalog.models import (
    BASELINE,
    FLOOR,
    RANK,
    SIDE_EFFECTS,
    VARIANTS,
    WIDE_NORM,
    WITHOUT_NORM,
    own_side_effects,
    type_name,
)
from diffattn.lab.report.page import phase
from diffattn.lab.report.page.wording import listing
from diffattn.lab.stats.multiple import holm
from diffattn.lab.stats.paired import paired_t_test

LEVEL = 0.05
"""Adjusted p-values up to it count."""


def compared_rows(
    differences: Sequence[Mapping[str, Any]],
    variants: Mapping[str, Any],
    diverged: Collection[str] = (),
) -> list[dict[str, Any]]:
    """The comparisons that a study of ablations is made for, with Holm's adjusted p-values.

    Every type and every ablation minus what it is compared with, V2 minus softmax with 1.5
    times the heads, and V1 and Shared DIFF minus one map with their norm, at one
    rate. Of ranks each minus rank 8, that minus V1, and λ_init minus the schedule: types are tested
    elsewhere. Other differences are for reading.

    Args:
        differences: Of :func:`diffattn.lab.studies.text.results.comparison_results`.
        variants: Of the same.
        diverged: Variants of which a run diverged; they are in neither.

    Returns:
        By row ``variant``, ``baseline``, ``at`` (which rates), ``p`` and ``p_holm`` (``None`` with
        one seed), and ``shown``: whether ``p_holm`` is at most :data:`LEVEL`. A row of which one
        side diverged, or has not passed the induction phase where others have, is not compared: it
        stays in the family, with 1 for its p-value, so that it makes nothing else easier to show.
    """
    members = {*variants, *diverged}
    found = [entry for entry in differences if _is_row(entry, variants, members)]
    untested = {"at": "best", "p": None, "p_holm": 1.0, "shown": False}
    without = [
        {"variant": name, "baseline": other, **untested}
        for name in (*variants, *diverged)
        for other in _compared_with(name, members)
        if {name, other} & set(diverged) and other in members
    ]
    return [*_tested(found, variants, others=len(without)), *without]


def compared_types(
    differences: Sequence[Mapping[str, Any]], variants: Mapping[str, Any]
) -> list[dict[str, Any]]:
    """What a comparison of types rests on, with Holm's adjusted p-values.

    Every type minus softmax attention and minus its imitations, at its chosen rate and at the
    common one; a type minus itself without its difference, at its chosen rate, which both have;
    the imitations and V1 without head norm minus softmax attention.

    Args:
        differences: Of :func:`diffattn.lab.studies.text.results.comparison_results`.
        variants: Of the same.

    Returns:
        As :func:`compared_rows`.
    """
    return list(_tested([entry for entry in differences if _is_of_types(entry)], variants))


def _tested(
    entries: Sequence[Mapping[str, Any]], variants: Mapping[str, Any], others: int = 0
) -> Iterator[dict[str, Any]]:
    """The tests of entries, all adjusted together, with others of p = 1."""
    p_values = [paired_t_test(entry["values"]) for entry in entries]
    adjusted = iter(
        holm(
            [
                1.0 if phase.gap(variants, entry["variant"], entry["baseline"], entry["at"]) else p
                for entry, p in zip(entries, p_values, strict=True)
                if p is not None
            ]
            + [1.0] * others
        )
    )
    for entry, p in zip(entries, p_values, strict=True):
        p_holm = None if p is None else next(adjusted)
        names = {name: entry[name] for name in ("variant", "baseline", "at")}
        shown = p_holm is not None and p_holm <= LEVEL
        yield names | {"p": p, "p_holm": p_holm, "shown": shown}


def _is_row(
    entry: Mapping[str, Any], variants: Mapping[str, Any], members: Collection[str]
) -> bool:
    name, other = entry["variant"], entry["baseline"]
    if other not in _compared_with(name, members) or entry["metric"] != "validation_loss":
        return False
    # One map with a type's norm stands at softmax attention's rate: there the type does, too.
    is_common = other == WIDE_NORM and "common" in variants[name]["at"]
    return bool(entry["at"] == ("common" if is_common else "best"))


def _compared_with(name: str, members: Collection[str]) -> tuple[str, ...]:
    """What a row of a study of ablations holds a variant against."""
    variant = VARIANTS[name]
    if name in (BASELINE, FLOOR):
        return ()
    if RANK in members and variant.role == "type":
        return ()
    return (variant.compared_with, *(variant.also if variant.role == "type" else ()))


def _is_of_types(entry: Mapping[str, Any]) -> bool:
    if entry["metric"] != "validation_loss":
        return False
    if VARIANTS[entry["variant"]].role == "type":
        own = own_side_effects(entry["variant"])
        return entry["baseline"] in (BASELINE, *SIDE_EFFECTS, *own)
    return entry["baseline"] == BASELINE and entry["variant"] in (*SIDE_EFFECTS, WITHOUT_NORM)


def rows_said(results: Mapping[str, Any]) -> Iterator[str]:
    """What the rows show, as clauses of a sentence: what is worse, what is better, how many not.

    Args:
        results: With ``rows``, ``variants``, ``differences`` and perhaps ``diverged``.
    """
    rows = results["rows"]
    if _has_one_seed(results):
        yield f"{len(rows)} rows with one seed each, so nothing is shown of any"
        return
    compared, apart = _compared_and_apart(results)
    means = {
        (entry["variant"], entry["baseline"], entry["at"]): entry["mean"]
        for entry in results["differences"]
        if entry["metric"] == "validation_loss"
    }
    for side, sign in (("worse", 1), ("better", -1)):
        there = [
            f"{_named(row)} by {abs(mean):.3f}"
            for row in compared
            if row["shown"]
            and sign * (mean := means[row["variant"], row["baseline"], row["at"]]) > 0
        ]
        if there:
            yield f"{side}: {listing(there)}"
    if alike := sum(not row["shown"] for row in compared):
        yield f"no difference is shown for {alike} of {len(rows)}"
    if lost := sum(map(len, apart.values())):
        yield f"{lost} {'is' if lost == 1 else 'are'} not compared"


def rows_details(results: Mapping[str, Any]) -> list[str]:
    """Which rows show no difference, and which are not compared and why, as sentences.

    Args:
        results: As of :func:`rows_said`.
    """
    if _has_one_seed(results):
        return []
    compared, apart = _compared_and_apart(results)
    alike = [_named(row) for row in compared if not row["shown"]]
    # Names have commas of their own.
    said = [f"No difference is shown for: {'; '.join(alike)}."] if alike else []
    return said + [f"Not compared, as {why}: {'; '.join(of)}." for why, of in apart.items()]


def _has_one_seed(results: Mapping[str, Any]) -> bool:
    return all(len(entry["values"]) == 1 for entry in results["differences"])


def _compared_and_apart(
    results: Mapping[str, Any],
) -> tuple[list[Mapping[str, Any]], dict[str, list[str]]]:
    """Rows, and by reason the names of those with a side that diverged, or that has not passed the
    induction phase where others have: their losses say who copies by now."""
    compared: list[Mapping[str, Any]] = []
    apart: dict[str, list[str]] = {}
    for row in results["rows"]:
        pair = (row["variant"], row["baseline"])
        why = phase.lost(results.get("diverged") or {}, *pair)
        if why := why or phase.gap(results["variants"], *pair, row["at"]):
            apart.setdefault(why, []).append(_named(row))
        else:
            compared.append(row)
    return compared, apart


def _named(row: Mapping[str, Any]) -> str:
    where = " at the common learning rate" if row["at"] == "common" else ""
    return f"{type_name(row['variant'])} against {type_name(row['baseline'])}{where}"
