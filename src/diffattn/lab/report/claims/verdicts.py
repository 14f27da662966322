"""What the records say of every claim: one of five verdicts, after Holm's adjustment."""

from collections.abc import Sequence
from dataclasses import dataclass

from diffattn.lab.report.claims.catalog import CLAIMS, Claim
from diffattn.lab.report.claims.measured import Measured
from diffattn.lab.report.claims.records import ClaimRecords
from diffattn.lab.stats.multiple import holm

LEVEL = 0.05
"""Adjusted p-values up to it count."""
FEWEST = 3
"""Seeds from which an effect can be judged."""
VERDICTS = ("agrees", "disagrees", "inconclusive", "uninformative", "not run")


@dataclass(frozen=True, kw_only=True, slots=True)
class JudgedClaim:
    """A claim, its effect, and what follows."""

    claim: Claim
    measured: Measured | None
    p_holm: float | None
    """Adjusted for all claims that have a p-value."""
    verdict: str
    """One of :data:`VERDICTS`."""
    why: str = ""
    """The reason, where the numbers do not show it."""


def judged_claims(records: ClaimRecords, claims: Sequence[Claim] = CLAIMS) -> list[JudgedClaim]:
    """Measure every claim, adjust the p-values of all together, and judge.

    An uninformative claim is adjusted for with 1 for its p-value, so that it makes no other easier
    to show.

    - *not run*: no record.
    - *uninformative*: the record says that it shows nothing of it, or a control explains it.
    - *inconclusive*: fewer than three seeds, or an adjusted p-value above 0.05; for times and
      counts, which are not tested, a range with the bound inside.
    - *agrees*, *disagrees*: the effect lies on the side of the bound that the claim says, or on
      the other.
    """
    found = [(claim, claim.measure(records)) for claim in claims]
    p_values = {
        claim.id: 1.0 if of.uninformative else of.p
        for claim, of in found
        if of is not None and of.p is not None
    }
    adjusted = dict(zip(p_values, holm([*p_values.values()]), strict=True))
    return [_judged(claim, of, adjusted.get(claim.id)) for claim, of in found]


def _judged(claim: Claim, of: Measured | None, p_holm: float | None) -> JudgedClaim:
    if of is None:
        why = "" if claim.commands.study else "no command measures it yet"
        return JudgedClaim(claim=claim, measured=None, p_holm=None, verdict="not run", why=why)
    verdict, why = _verdict(claim, of, p_holm)
    return JudgedClaim(claim=claim, measured=of, p_holm=p_holm, verdict=verdict, why=why)


def _verdict(claim: Claim, of: Measured, p_holm: float | None) -> tuple[str, str]:
    if of.uninformative:
        return "uninformative", of.uninformative
    as_claimed = (of.effect < claim.bound) == (claim.expects == "below")
    side = "agrees" if as_claimed else "disagrees"
    if of.is_range:
        assert of.low is not None
        assert of.high is not None
        inside = of.low < claim.bound <= of.high
        return ("inconclusive", "the bound lies within the range") if inside else (side, "")
    seeds = of.n if of.seeds is None else of.seeds
    if seeds < FEWEST:
        return "inconclusive", f"{seeds} of the {FEWEST} seeds that it takes"
    if p_holm is None or p_holm > LEVEL:
        return "inconclusive", ""
    return side, ""
