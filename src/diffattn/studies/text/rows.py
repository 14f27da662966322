"""Rows of an ablation: each against what it changes one thing of, all tested together."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from diffattn.report.page.wording import listing, type_name
from diffattn.stats.multiple import holm
from diffattn.stats.paired import paired_t_test
from diffattn.studies.variants import FLOOR, VARIANTS

LEVEL = 0.05
"""Adjusted p-values up to it count."""


def compared_rows(differences: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """The comparisons that a study of ablations is made for, with Holm's adjusted p-values.

    Every type and every ablation minus what it is compared with, and V2 minus softmax with as many
    heads as its parameters pay for. Differences to the controls are for reading, not tested.

    Args:
        differences: Of :func:`diffattn.studies.text.results.comparison_results`.

    Returns:
        By row ``variant``, ``baseline``, ``p`` and ``p_holm`` (``None`` with one seed), and
        ``shown``: whether ``p_holm`` is at most :data:`LEVEL`.
    """
    found = [entry for entry in differences if _is_row(entry)]
    p_values = [paired_t_test(entry["values"]) for entry in found]
    adjusted = iter(holm([p for p in p_values if p is not None]))
    rows = []
    for entry, p in zip(found, p_values, strict=True):
        p_holm = None if p is None else next(adjusted)
        rows.append(
            {
                "variant": entry["variant"],
                "baseline": entry["baseline"],
                "p": p,
                "p_holm": p_holm,
                "shown": p_holm is not None and p_holm <= LEVEL,
            }
        )
    return rows


def _is_row(entry: Mapping[str, Any]) -> bool:
    variant = VARIANTS[entry["variant"]]
    if (entry["at"], entry["metric"]) != ("best", "validation_loss") or variant.name == FLOOR:
        return False
    others = variant.besides if variant.role == "type" else ()
    return entry["baseline"] in (variant.compared_with, *others)


def rows_said(results: Mapping[str, Any]) -> Iterator[str]:
    """What the rows show, as clauses of a sentence: what is worse, what is better, and the rest.

    Args:
        results: With ``rows`` and ``differences``.
    """
    means = {
        (entry["variant"], entry["baseline"]): entry["mean"]
        for entry in results["differences"]
        if (entry["at"], entry["metric"]) == ("best", "validation_loss")
    }
    rows = [(row, means[row["variant"], row["baseline"]]) for row in results["rows"]]
    if all(row["p"] is None for row, _ in rows):
        yield f"{len(rows)} rows with one seed each, so nothing is shown of any"
        return
    for side, sign in (("worse", 1), ("better", -1)):
        there = [
            f"{_named(row)} by {abs(mean):.3f}"
            for row, mean in rows
            if row["shown"] and sign * mean > 0
        ]
        if there:
            yield f"{side}: {listing(there)}"
    alike = [_named(row) for row, _ in rows if not row["shown"]]
    if alike:
        yield f"no difference is shown for {listing(alike)}"


def _named(row: Mapping[str, Any]) -> str:
    return f"{type_name(row['variant'])} against {type_name(row['baseline'])}"
