"""The catalogue of claims, and what the records hold of each."""

from collections.abc import Sequence
from dataclasses import dataclass

from diffattn.lab.report.claims.claim import Claim, Measured
from diffattn.lab.report.claims.from_benchmarks import TIME_MEASURES
from diffattn.lab.report.claims.from_evaluations import SCORE_MEASURES
from diffattn.lab.report.claims.from_gradients import GRADIENT_MEASURES
from diffattn.lab.report.claims.from_studies import STUDY_MEASURES
from diffattn.lab.report.claims.from_text import LOSS_MEASURES
from diffattn.lab.report.claims.records import ClaimRecords
from diffattn.lab.report.paper import paper_results

MEASURES = LOSS_MEASURES | STUDY_MEASURES | SCORE_MEASURES | GRADIENT_MEASURES | TIME_MEASURES
CLAIMS = tuple(
    Claim(**stated._asdict(), **vars(MEASURES[stated.id]))
    for result in paper_results()
    for stated in result.claims
)
"""In the order of the papers."""


@dataclass(frozen=True, kw_only=True, slots=True)
class MeasuredClaim:
    """A claim and the effect that the records hold; ``None`` if they hold none."""

    claim: Claim
    measured: Measured | None
    missing: str = ""
    """Why there is no effect, where that is known."""


def measured_claims(records: ClaimRecords, claims: Sequence[Claim] = CLAIMS) -> list[MeasuredClaim]:
    """Read the effect of every claim. Nothing is tested here: a study tests its own questions."""
    return [MeasuredClaim(claim=claim, measured=claim.measure(records)) for claim in claims]
