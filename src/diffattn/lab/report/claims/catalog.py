"""All claims of the papers, and their effects in the records."""

from collections.abc import Sequence

from diffattn.lab.report.claims.claim import Claim, MeasuredClaim
from diffattn.lab.report.claims.from_benchmarks import TIME_MEASURES
from diffattn.lab.report.claims.from_evaluations import SCORE_MEASURES
from diffattn.lab.report.claims.from_studies import STUDY_MEASURES
from diffattn.lab.report.claims.from_text import LOSS_MEASURES
from diffattn.lab.report.claims.records import ClaimRecords
from diffattn.lab.report.paper import paper_results

MEASURES = LOSS_MEASURES | STUDY_MEASURES | SCORE_MEASURES | TIME_MEASURES
CLAIMS = tuple(
    MEASURES[stated["id"]]._replace(**stated)
    for result in paper_results()
    for stated in result.claims
)
"""In the order of the papers."""


def measured_claims(records: ClaimRecords, claims: Sequence[Claim] = CLAIMS) -> list[MeasuredClaim]:
    """Read the effect of every claim. There are no tests here: each study tests its questions."""
    return [MeasuredClaim(claim, claim.measure(records)) for claim in claims]
