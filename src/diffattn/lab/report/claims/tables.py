"""The claims as a table, and ``docs/findings/claims.md``.

``python -m diffattn.lab.report.claims.tables docs/findings/claims.md`` writes that file from the
records of the checkout that holds it.
"""

import sys
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType

from diffattn.files.io import write_text
from diffattn.lab.report.claims.records import read_claim_records
from diffattn.lab.report.claims.verdicts import VERDICTS, JudgedClaim, judged_claims
from diffattn.lab.report.page.elements import Bullets, Document, Section, Text
from diffattn.lab.report.page.markdown import document_markdown
from diffattn.lab.report.page.tables import Cell, Table, number_cell, table, word_cell
from diffattn.lab.report.page.wording import MISSING, listing, number, p_value, plural, span

HEADERS = (
    "Claim",
    "The paper says",
    "Effect measured",
    "If it holds",
    "Effect",
    "Range or 95 % interval",
    "n",
    "p",
    "p, Holm",
    "Verdict",
    "Record",
)
DECIDED = ("agrees", "disagrees")
_COMMAND = "python -m diffattn.lab.report.claims.tables docs/findings/claims.md"
_RULE = (
    "*Agrees* and *disagrees* need three seeds and a p-value of at most 0.05 after Holm's "
    "adjustment over all claims that have one. An uninformative claim counts with 1.",
    "Times and counts are not tested. Their whole range must lie on one side of the bound.",
    "*Uninformative*: the record says so, it holds no control, or a control explains the lead.",
    "*Inconclusive* is everything between. *Not run* means that there is no record.",
    "Intervals: Student's t of differences paired by seed, the sign test's of medians, Newcombe's "
    "of shares, the delta method's of fits.",
)


def committed_claims() -> Path | None:
    """The checkout that runs; ``None`` for an installed package, which carries no records."""
    root = Path(__file__).parents[5]
    return root if (root / "published").is_dir() else None


def table_of_claims(
    caption: str,
    judged: Sequence[JudgedClaim],
    headers: Sequence[str] = HEADERS,
    places: Mapping[str, str] = MappingProxyType({}),
) -> Table:
    """Show one row per claim: the statement, the effect, the verdict and the record.

    Args:
        caption: Of the table.
        judged: The claims.
        headers: The columns wanted. Default: all.
        places: Folder of a committed record to where it lies. Default: as committed.
    """
    rows = []
    for row in judged:
        cells = _cells(row, places)
        rows.append([cells[header] for header in headers])
    return table(caption, headers, rows)


def claims_table(root: Path) -> Table:
    """Show every claim, for the page of a study.

    Args:
        root: Folder with ``published/`` and ``benchmarks/``.

    Raises:
        CheckpointError: A record is damaged or foreign.
    """
    judged = judged_claims(read_claim_records(root))
    headers = [header for header in HEADERS if header not in ("If it holds", "p", "Record")]
    return table_of_claims(count_verdicts(judged), judged, headers)


def count_verdicts(judged: Sequence[JudgedClaim]) -> str:
    """Say how many claims have which verdict."""
    counts = Counter(row.verdict for row in judged)
    parts = [f"{verdict} {counts[verdict]}" for verdict in VERDICTS]
    return f"{plural(len(judged), 'claim')}: {listing(parts)}."


def claims_document(root: Path) -> Document:
    """Assemble ``docs/findings/claims.md``.

    Args:
        root: Folder with ``published/`` and ``benchmarks/``.

    Raises:
        CheckpointError: A record is damaged or foreign.
    """
    judged = judged_claims(read_claim_records(root))
    decided = [row for row in judged if row.verdict in DECIDED]
    headers = [header for header in HEADERS if header not in ("If it holds", "p")]
    names = {
        verdict: ", ".join(f"`{row.claim.id}`" for row in judged if row.verdict == verdict)
        for verdict in VERDICTS
        if verdict not in DECIDED
    }
    return Document(
        title="Claims of the papers",
        lead=[
            Text(f"**{count_verdicts(judged)}** No verdict is about models of the papers' sizes."),
            Text(
                f"`{_COMMAND}` writes this page from the records. The page of a study of text "
                "shows all claims with their effects, and `diffattn reproduce` a page with the "
                "commands for each."
            ),
        ],
        sections=[
            Section("decided", "Decided", [table_of_claims("", decided, headers)]),
            Section("open", "Open", [Bullets([f"{v.capitalize()}: {names[v]}." for v in names])]),
            Section("rule", "Rule", [Bullets(_RULE)]),
        ],
    )


def _cells(row: JudgedClaim, places: Mapping[str, str]) -> dict[str, Cell | str]:
    claim, measured = row.claim, row.measured
    numbers = [MISSING] * 4
    if measured is not None:
        ends = MISSING
        if measured.low is not None and measured.high is not None and measured.low < measured.high:
            ends = span(measured.low, measured.high, measured.digits)
        effect = number(measured.effect, measured.digits)
        numbers = [effect, ends, measured.count, p_value(measured.p)]
    effect, ends, count, p = numbers
    return {
        "Claim": claim.id,
        "The paper says": word_cell(f"{claim.says} ({claim.source})"),
        "Effect measured": word_cell(claim.effect),
        "If it holds": word_cell(f"{claim.expects} {number(claim.bound, 2).removesuffix('.00')}"),
        "Effect": number_cell(effect),
        "Range or 95 % interval": number_cell(ends),
        "n": number_cell(count, note="" if measured is None else measured.note),
        "p": number_cell(p),
        "p, Holm": number_cell(p_value(row.p_holm)),
        "Verdict": Cell(text=row.verdict, badge=row.verdict.replace(" ", "-"), note=row.why),
        "Record": word_cell(places.get(claim.record, claim.record)),
    }


if __name__ == "__main__":
    for argument in sys.argv[1:]:
        file = Path(argument).resolve()
        write_text(file, document_markdown(claims_document(file.parents[2])))
