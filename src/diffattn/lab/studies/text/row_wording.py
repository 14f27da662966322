"""The result of a study of ablations in words: clauses of a sentence, and the rows it counts."""

from collections.abc import Iterator

from diffattn.lab.catalog.models import type_name
from diffattn.lab.records.text_results import AdjustedTest, ComparisonResults
from diffattn.lab.report.page import phase
from diffattn.lab.report.page.wording import listing


def clauses(results: ComparisonResults) -> Iterator[str]:
    """Name the rows that are worse and better; count those without a difference.

    Args:
        results: Of a study of ablations.
    """
    rows = results["rows"]
    if _has_one_seed(results):
        yield f"{len(rows)} rows with one seed each, so nothing is shown of any"
        return
    compared, apart = _split_rows(results)
    means = {
        (entry["variant"], entry["baseline"], entry["at"]): entry["mean"]
        for entry in results["differences"]
        if entry["metric"] == "validation_loss"
    }
    for side, sign in (("worse", 1), ("better", -1)):
        names = [
            f"{_row_name(row)} by {abs(mean):.3f}"
            for row in compared
            if row["shown"]
            and sign * (mean := means[row["variant"], row["baseline"], row["at"]]) > 0
        ]
        if names:
            yield f"{side}: {listing(names)}"
    if alike := sum(not row["shown"] for row in compared):
        yield f"no difference is shown for {alike} of {len(rows)}"
    if lost := sum(map(len, apart.values())):
        yield f"{lost} {'is' if lost == 1 else 'are'} not compared"


def details(results: ComparisonResults) -> list[str]:
    """Name the rows without a difference, and those that are not compared with the reason.

    Args:
        results: Of a study of ablations.
    """
    if _has_one_seed(results):
        return []
    compared, apart = _split_rows(results)
    alike = [_row_name(row) for row in compared if not row["shown"]]
    # Names contain commas.
    sentences = [f"No difference is shown for: {'; '.join(alike)}."] if alike else []
    reasons = [f"Not compared, as {why}: {'; '.join(rows)}." for why, rows in apart.items()]
    return sentences + reasons


def _has_one_seed(results: ComparisonResults) -> bool:
    return all(len(entry["values"]) == 1 for entry in results["differences"])


def _split_rows(
    results: ComparisonResults,
) -> tuple[list[AdjustedTest], dict[str, list[str]]]:
    """Rows that are compared; and by reason the names of the others.

    A row is not compared if one side diverged, or has not passed the induction phase where others
    have: then the losses only tell who copies by now.
    """
    compared: list[AdjustedTest] = []
    apart: dict[str, list[str]] = {}
    for row in results["rows"]:
        pair = (row["variant"], row["baseline"])
        why = phase.explain_divergence(results.get("diverged", {}), *pair)
        if why := why or phase.explain_gap(results["variants"], *pair, row["at"]):
            apart.setdefault(why, []).append(_row_name(row))
        else:
            compared.append(row)
    return compared, apart


def _row_name(row: AdjustedTest) -> str:
    where = " at the common learning rate" if row["at"] == "common" else ""
    return f"{type_name(row['variant'])} against {type_name(row['baseline'])}{where}"
