"""The claims as a table."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType

from diffattn.lab.report.claims.catalog import MeasuredClaim, measured_claims
from diffattn.lab.report.claims.records import read_claim_records
from diffattn.lab.report.page.tables import Cell, Table, number_cell, table, word_cell
from diffattn.lab.report.page.wording import MISSING, number, plural, span

HEADERS = (
    "Claim",
    "The paper says",
    "Effect measured",
    "Effect",
    "Range or 95 % interval",
    "n",
    "Reservation",
    "Record",
)


def committed_claims() -> Path | None:
    """The checkout that runs; ``None`` for an installed package, which carries no records."""
    root = Path(__file__).parents[5]
    return root if (root / "published").is_dir() else None


def table_of_claims(
    caption: str,
    measured: Sequence[MeasuredClaim],
    headers: Sequence[str] = HEADERS,
    places: Mapping[str, str] = MappingProxyType({}),
) -> Table:
    """Show one row per claim: the statement, the effect, what speaks against it, and the record.

    Args:
        caption: Of the table.
        measured: The claims.
        headers: The columns wanted. Default: all.
        places: Folder of a committed record to where it lies. Default: as committed.
    """
    rows = []
    for row in measured:
        cells = _cells(row, places)
        rows.append([cells[header] for header in headers])
    return table(caption, headers, rows)


def claims_table(root: Path) -> Table:
    """Show every claim that was measured, for the page of a study.

    Args:
        root: Folder with ``published/`` and ``benchmarks/``.

    Raises:
        CheckpointError: A record is damaged or foreign.
    """
    every = measured_claims(read_claim_records(root))
    known = [row for row in every if row.measured is not None]
    caption = f"{plural(len(known), 'claim')} of {len(every)} measured here."
    return table_of_claims(caption, known)


def _cells(row: MeasuredClaim, places: Mapping[str, str]) -> dict[str, Cell | str]:
    claim, measured = row.claim, row.measured
    effect = ends = count = MISSING
    reservation = row.missing
    if measured is not None:
        if measured.low is not None and measured.high is not None and measured.low < measured.high:
            ends = span(measured.low, measured.high, measured.digits)
        effect, count = number(measured.effect, measured.digits), measured.count
        reservation = measured.uninformative
    return {
        "Claim": claim.id,
        "The paper says": word_cell(f"{claim.says} ({claim.source})"),
        "Effect measured": word_cell(claim.effect),
        "Effect": number_cell(effect),
        "Range or 95 % interval": number_cell(ends),
        "n": number_cell(count, note="" if measured is None else measured.note),
        "Reservation": word_cell(reservation),
        "Record": word_cell(places.get(claim.record, claim.record)),
    }
