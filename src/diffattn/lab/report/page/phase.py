"""Which pairs are compared. Before the induction phase, losses only show who has not copied yet."""

from collections.abc import Mapping, Sequence
from statistics import median
from typing import Any

from diffattn.lab.report.page.wording import plural, type_name

PASSED = 0.5
"""Least share of a model's runs that must have passed for the model to count as past the phase."""


def share_passed(group: Mapping[str, Any]) -> float:
    """Share of a variant's runs at one rate that passed."""
    steps = group["phase_steps"]
    return sum(step is not None for step in steps) / len(steps)


def when_passed(group: Mapping[str, Any]) -> str:
    """Say at which step the runs of a variant passed, or how many did; empty if none did."""
    steps = group["phase_steps"]
    passed = [step for step in steps if step is not None]
    if len(passed) == len(steps):
        return f"at step {median(passed):,.0f}"
    return f"in {len(passed)} of {len(steps)} runs" if passed else ""


def explain_gap(variants: Mapping[str, Any], first: str, second: str, at: str = "best") -> str:
    """Say why two variants are not compared, if not. Where no model has passed, all are."""
    groups = {name: entry["at"].get(at, entry["at"]["best"]) for name, entry in variants.items()}
    passed = {name for name, group in groups.items() if share_passed(group) >= PASSED}
    if not passed or {first, second} <= passed:
        return ""
    if passed.isdisjoint((first, second)):
        return "neither has passed the induction phase"
    return "one has passed the induction phase and the other has not"


def explain_divergence(diverged: Mapping[str, Sequence[int]], *names: str) -> str:
    """Say which variants diverged, by their numbers of diverged and of all runs; else empty."""
    return " and ".join(
        f"{type_name(name)} diverged in {counts[0]} of {plural(counts[1], 'run')}"
        for name in names
        if (counts := diverged.get(name)) is not None
    )
