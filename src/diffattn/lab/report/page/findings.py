"""What records say of one claim, as plain values that any page can show."""

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True, slots=True)
class Finding:
    """One claim of a paper, and what was measured of it."""

    claim: str
    """Its short name."""
    says: str
    """What the paper says."""
    source: str
    """Paper and table, figure or section."""
    effect: str
    """What is measured, in words, with its unit."""
    holds: str
    """What the effect is if the claim holds."""
    numbers: tuple[str, str, str, str, str]
    """Effect, its range or interval, n, p and p after Holm's adjustment."""
    verdict: str
    """One of the five of the claims table."""
    why: str
    """The reason of the verdict, where the numbers do not show it."""
    record: str
    """Where the record lies, or would lie."""
    commands: tuple[tuple[str, str], ...]
    """Scale and command line; empty if there is none."""
