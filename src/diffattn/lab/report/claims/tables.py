"""All claims of the papers, and their effects in the records as a table."""

from collections.abc import Mapping, Sequence
from pathlib import Path

from diffattn.lab.records.evaluations import EvalResult
from diffattn.lab.report.claims.claim import Claim, MeasuredClaim
from diffattn.lab.report.claims.from_benchmarks import TIME_MEASURES
from diffattn.lab.report.claims.from_evaluations import SCORE_MEASURES
from diffattn.lab.report.claims.from_studies import LOSS_MEASURES, STUDY_MEASURES
from diffattn.lab.report.claims.records import ClaimRecords, read_claim_records
from diffattn.lab.report.page.tables import Table, number_cell, record_table, word_cell
from diffattn.lab.report.page.wording import MISSING, number, plural, span
from diffattn.lab.report.paper import paper_results

MEASURES = LOSS_MEASURES | STUDY_MEASURES | SCORE_MEASURES | TIME_MEASURES
CLAIMS = tuple(
    MEASURES[stated["id"]]._replace(**stated)
    for result in paper_results()
    for stated in result.claims
)


def measured_claims(records: ClaimRecords, claims: Sequence[Claim] = CLAIMS) -> list[MeasuredClaim]:
    """Read the effect of every claim. There are no tests here: each study tests its questions."""
    return [MeasuredClaim(claim, claim.measure(records)) for claim in claims]


def checkout_root() -> Path | None:
    """Root of this checkout; ``None`` for an installed package, which has no records."""
    root = Path(__file__).parents[5]
    return root if (root / "published").is_dir() else None


def table_of_claims(
    caption: str, measured: Sequence[MeasuredClaim], places: Mapping[str, str] | None = None
) -> Table:
    """Show one row per claim: the statement, the effect, a reservation, and the record.

    ``places``: folder of a committed record -> its folder here. Default: no column of records.
    """
    rows = []
    for claim, effect in measured:
        mean = ends = count = MISSING
        note = reservation = ""
        if effect is not None:
            if effect.low is not None and effect.high is not None and effect.low < effect.high:
                ends = span(effect.low, effect.high, effect.digits)
            mean, count = number(effect.effect, effect.digits), effect.count
            note, reservation = effect.note, effect.uninformative
        row = {
            "Claim": claim.id,
            "The paper says": word_cell(f"{claim.says} ({claim.source})"),
            "Effect measured": word_cell(claim.effect),
            "Effect": number_cell(mean),
            "Range or 95 % interval": number_cell(ends),
            "n": number_cell(count, note=note),
            "Reservation": word_cell(reservation),
        }
        if places is not None:
            row["Record"] = word_cell(places.get(claim.record, claim.record))
        rows.append(row)
    return record_table(caption, rows)


def claims_table(root: Path) -> Table:
    """Show every claim that was measured, for the page of a study."""
    every = measured_claims(read_claim_records(root))
    known = [row for row in every if row.measured is not None]
    caption = f"{plural(len(known), 'claim')} of {len(every)} measured here."
    return table_of_claims(caption, known, {})


def evaluation_claims(results: Sequence[EvalResult]) -> Table | None:
    """Measure the claims that these results are about; ``None`` if there is no such claim."""
    protocols = {result.protocol.removesuffix("_judge") for result in results}
    claims = [claim for claim in CLAIMS if claim.protocol in protocols]
    if not claims:
        return None
    caption = (
        "Claims of the papers about these protocols; none is tested. Models must be called "
        "softmax-seed0, diff-seed0, … to be compared by seed; hallucination needs 'diffattn judge'."
    )
    return table_of_claims(
        caption, measured_claims(ClaimRecords(evaluations=list(results)), claims)
    )
