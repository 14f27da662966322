"""The claims as tables: for the page of a study, and for ``docs/findings/claims.md``.

``python -m diffattn.lab.report.claims.tables docs/findings/claims.md`` writes that file from the
records of the checkout that holds it.
"""

import sys
from collections import Counter
from collections.abc import Mapping
from pathlib import Path

from diffattn.files.io import write_text
from diffattn.lab.report.claims.catalog import Claim
from diffattn.lab.report.claims.folders import read_claim_records
from diffattn.lab.report.claims.measured import Measured
from diffattn.lab.report.claims.records import ClaimRecords
from diffattn.lab.report.claims.verdicts import VERDICTS, JudgedClaim, judged_claims
from diffattn.lab.report.page.findings import Finding
from diffattn.lab.report.page.tables import Table, head_cell, number_cell, table, word_cell
from diffattn.lab.report.page.wording import (
    MISSING,
    listing,
    markdown_table,
    number,
    p_value,
    plural,
    span,
)

HEADERS = (
    "Claim", "The paper says", "Effect measured", "If it holds", "Effect", "Range or 95 % interval",
    "n", "p", "p, Holm", "Verdict", "Record",
)  # fmt: skip
REGENERATE = "python -m diffattn.lab.report.claims.tables docs/findings/claims.md"


def committed_claims() -> Path | None:
    """The checkout that runs, if it is one: an installed package carries no records."""
    root = Path(__file__).parents[5]
    return root if (root / "published").is_dir() else None


def findings_of(records: ClaimRecords, lies_at: Mapping[str, str]) -> list[Finding]:
    """Every claim with its verdict, for a page beside the papers.

    Args:
        records: What has been measured.
        lies_at: Folder of a record under the repository to where it lies.
    """
    return [
        Finding(
            claim=row.claim.id,
            says=row.claim.says,
            source=row.claim.source,
            effect=row.claim.effect,
            holds=_holds(row.claim),
            numbers=_numbers(row.measured, row.p_holm),
            verdict=row.verdict,
            why=row.why,
            record=lies_at.get(row.claim.record, row.claim.record),
            commands=tuple(_command_lines(row.claim)),
        )
        for row in judged_claims(records)
    ]


def claims_table(root: Path) -> Table:
    """Every claim with its verdict, for a page.

    Args:
        root: Folder with ``published/`` and ``benchmarks/``.

    Raises:
        CheckpointError: A record is damaged or foreign.
    """
    judged = judged_claims(read_claim_records(root))
    rows = []
    for row in judged:
        name, *words = _cells(row)
        says, effect, holds, *numbers, verdict, record = words
        rows.append(
            [
                head_cell(name), word_cell(says), word_cell(effect), word_cell(holds),
                *map(number_cell, numbers), word_cell(verdict), word_cell(record),
            ]
        )  # fmt: skip
    return table(summary(judged), HEADERS, rows)


def summary(judged: list[JudgedClaim]) -> str:
    """How many claims have which verdict, in a sentence."""
    counts = Counter(row.verdict for row in judged)
    parts = [f"{verdict} {counts[verdict]}" for verdict in VERDICTS]
    return f"{plural(len(judged), 'claim')}: {listing(parts)}."


def claims_document(root: Path) -> str:
    """``docs/findings/claims.md``.

    Args:
        root: Folder with ``published/`` and ``benchmarks/``.

    Raises:
        CheckpointError: A record is damaged or foreign.
    """
    judged = judged_claims(read_claim_records(root))
    decided = [row for row in judged if row.verdict in ("agrees", "disagrees")]
    headers = (*HEADERS[:3], *HEADERS[4:7], *HEADERS[8:])
    cells = map(_cells, decided)
    lines = [
        "# Claims of the papers",
        "",
        f"**{summary(judged)}** No verdict is about models of the papers' sizes.",
        "",
        f"`{REGENERATE}` writes this page from the records. The page of a study of text shows all "
        "claims with their effects, and `diffattn reproduce` a page with the commands for each.",
        "",
        "## Decided",
        "",
        markdown_table(headers, ((*c[:3], *c[4:7], *c[8:]) for c in cells)),
        "",
        "## Open",
        "",
        *(_open(judged, verdict) for verdict in VERDICTS[2:]),
        "",
        "## Rule",
        "",
        _RULE,
    ]
    return "\n".join(lines)


_RULE = """\
- *Agrees* and *disagrees* need three seeds and a p-value of at most 0.05 after Holm's adjustment
  over all claims that have one. An uninformative claim counts with 1.
- Times and counts are not tested. Their whole range must lie on one side of the bound.
- *Uninformative*: the record says so, it holds no control, or a control explains the lead.
- *Inconclusive* is everything between. *Not run* means that there is no record.
- Intervals: Student's t of differences paired by seed, the sign test's of medians, Newcombe's of
  shares, the delta method's of fits.
"""


def _open(judged: list[JudgedClaim], verdict: str) -> str:
    names = ", ".join(f"`{row.claim.id}`" for row in judged if row.verdict == verdict)
    return f"- {verdict.capitalize()}: {names}."


def _cells(row: JudgedClaim) -> list[str]:
    claim = row.claim
    verdict = row.verdict + (f": {row.why}" if row.why else "")
    return [
        claim.id,
        f"{claim.says} ({claim.source})",
        claim.effect,
        _holds(claim),
        *_numbers(row.measured, row.p_holm),
        verdict,
        claim.record,
    ]


def _holds(claim: Claim) -> str:
    return f"{claim.expects} {number(claim.bound, 2).removesuffix('.00')}"


def _numbers(of: Measured | None, p_holm: float | None) -> tuple[str, str, str, str, str]:
    if of is None:
        return (MISSING,) * 5
    ends = MISSING
    if of.low is not None and of.high is not None and of.low < of.high:
        ends = span(of.low, of.high, of.digits)
    return number(of.effect, of.digits), ends, of.count, p_value(of.p), p_value(p_holm)


def _command_lines(claim: Claim) -> list[tuple[str, str]]:
    """The scales at which it can be tested, with their commands."""
    lines = zip(claim.commands._fields, claim.commands, strict=True)
    return [(scale, line) for scale, line in lines if line]


if __name__ == "__main__":
    for argument in sys.argv[1:]:
        file = Path(argument).resolve()
        write_text(file, claims_document(file.parents[2]))
