"""The catalogue of claims, and one of five verdicts for each, after Holm's adjustment."""

from collections.abc import Sequence
from dataclasses import dataclass

from diffattn.lab.report.claims.claim import Claim, Measured
from diffattn.lab.report.claims.from_benchmarks import TIME_TESTS
from diffattn.lab.report.claims.from_evaluations import SCORE_TESTS
from diffattn.lab.report.claims.from_gradients import GRADIENT_TESTS
from diffattn.lab.report.claims.from_studies import STUDY_TESTS
from diffattn.lab.report.claims.from_text import LOSS_TESTS
from diffattn.lab.report.claims.records import ClaimRecords
from diffattn.lab.report.paper import paper_results
from diffattn.lab.stats.multiple import holm

TESTS = LOSS_TESTS | STUDY_TESTS | SCORE_TESTS | GRADIENT_TESTS | TIME_TESTS
CLAIMS = tuple(
    Claim(**stated._asdict(), **vars(TESTS[stated.id]))
    for result in paper_results()
    for stated in result.claims
)
"""In the order of the papers."""
LEVEL = 0.05
"""Adjusted p-values up to it count."""
FEWEST_SEEDS = 3
"""Seeds from which an effect can be judged."""
VERDICTS = {
    "agrees": "measured on the side that the paper says, beyond the spread of at least three seeds",
    "disagrees": "measured on the other side, beyond that spread",
    "inconclusive": "a fair test that did not decide: more seeds may",
    "uninformative": "the second map may not be the cause: a control without it is not shown to do "
    "worse, none was trained, or the models have not learned the task",
    "not run": "there is no record",
}
"""Each with its meaning."""


@dataclass(frozen=True, kw_only=True, slots=True)
class JudgedClaim:
    """A claim, its effect, and the verdict."""

    claim: Claim
    measured: Measured | None
    p_holm: float | None
    """Adjusted for all claims that have a p-value."""
    verdict: str
    """A key of :data:`VERDICTS`."""
    why: str = ""
    """The reason, where the numbers do not show it."""


def judged_claims(records: ClaimRecords, claims: Sequence[Claim] = CLAIMS) -> list[JudgedClaim]:
    """Measure every claim, adjust the p-values of all together, and judge.

    The p-value of an uninformative claim counts as 1, so that it makes no other easier to show.

    - *not run*: no record.
    - *uninformative*: the record says that it shows nothing of the claim, or a control explains it.
    - *inconclusive*: fewer than three seeds, or an adjusted p-value above 0.05; for times and
      counts, which are not tested, a range with the bound inside.
    - *agrees*, *disagrees*: the effect lies on the side of the bound that the claim says, or on
      the other.
    """
    effects = [(claim, claim.measure(records)) for claim in claims]
    p_values = {
        claim.id: 1.0 if measured.uninformative else measured.p
        for claim, measured in effects
        if measured is not None and measured.p is not None
    }
    adjusted = dict(zip(p_values, holm([*p_values.values()]), strict=True))
    judged = []
    for claim, measured in effects:
        p_holm = adjusted.get(claim.id)
        verdict, why = _judge(claim, measured, p_holm)
        judged.append(
            JudgedClaim(claim=claim, measured=measured, p_holm=p_holm, verdict=verdict, why=why)
        )
    return judged


def _judge(claim: Claim, measured: Measured | None, p_holm: float | None) -> tuple[str, str]:
    if measured is None:
        return "not run", "" if claim.commands.study else "no command measures it yet"
    if measured.uninformative:
        return "uninformative", measured.uninformative
    as_claimed = (measured.effect < claim.bound) == (claim.expects == "below")
    side = "agrees" if as_claimed else "disagrees"
    if measured.is_range:
        assert measured.low is not None
        assert measured.high is not None
        if measured.low < claim.bound <= measured.high:
            return "inconclusive", "the bound lies within the range"
        return side, ""
    seeds = measured.n if measured.seeds is None else measured.seeds
    if seeds < FEWEST_SEEDS:
        return "inconclusive", f"{seeds} of the {FEWEST_SEEDS} seeds that it takes"
    return (side if p_holm is not None and p_holm <= LEVEL else "inconclusive"), ""
