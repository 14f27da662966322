"""Which models of a study are not compared: before the induction phase losses compare only time."""

from collections.abc import Mapping, Sequence
from typing import Any

from diffattn.lab.report.page.wording import plural, type_name

MOST = 0.5
"""Share of its runs by which a model counts as past the phase."""


def share_passed(group: Mapping[str, Any]) -> float | None:
    """Share of a variant's runs at one rate that passed; ``None`` if that was not recorded.

    Args:
        group: One of ``variants[name]["at"]`` of ``results.json``.
    """
    steps = group.get("phase_steps")
    return sum(step is not None for step in steps) / len(steps) if steps else None


def gap(variants: Mapping[str, Any], one: str, other: str, at: str = "best") -> str:
    """Why two variants are not compared; empty if they are.

    Nothing separates them where no model of the study has passed.

    Args:
        variants: Of ``results.json``.
        one: A name in it.
        other: Another.
        at: ``"best"`` or ``"common"``: at which learning rates.
    """
    groups = {name: entry["at"].get(at, entry["at"]["best"]) for name, entry in variants.items()}
    shares = {name: share_passed(group) for name, group in groups.items()}
    passed = {name for name, share in shares.items() if share is not None and share >= MOST}
    if not passed or shares[one] is None or shares[other] is None or {one, other} <= passed:
        return ""
    if passed.isdisjoint((one, other)):
        return "neither has passed the induction phase"
    return "one has passed the induction phase and the other has not"


def lost(diverged: Mapping[str, Sequence[int]], *names: str) -> str:
    """Why variants are not compared of which a run diverged; empty if none of these.

    Args:
        diverged: By variant, how many of its runs diverged and how many there are.
        names: What is compared.
    """
    return " and ".join(
        f"{type_name(name)} diverged in {of[0]} of {plural(of[1], 'run')}"
        for name in names
        if (of := diverged.get(name)) is not None
    )
