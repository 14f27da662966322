"""What paired differences show of the models they were measured on: Holm, and a word each."""

from collections.abc import Sequence
from dataclasses import replace

from diffattn.lab.evaluation.metrics import is_share
from diffattn.lab.evaluation.pairing import seed_of
from diffattn.lab.records.evaluations import PairedDifference
from diffattn.lab.stats.multiple import holm
from diffattn.lab.stats.proportions import wilson_interval

CEILING = 0.99
"""Shares from here on are as good as all right."""
SEEDS = 3
"""Fewest seeds that show anything of a kind of model, as in ``docs/findings/claims.md``."""
ABOVE = 0.01
"""What a model must surely score beyond guessing to be above it."""


def with_verdicts(differences: Sequence[PairedDifference]) -> list[PairedDifference]:
    """The same with adjusted p-values and verdicts for the primary scores.

    Holm's family is all primary scores over the same thing, items or seeds, of all models. The
    words say what was seen of these models, not of a paper's claim:

    - *higher* or *lower*: the adjusted p-value is at most 0.05.
    - *inconclusive*: it is not, or there is none.
    - *uninformative*: in no kind of task that has a floor is a model above its own, or only the
      lower one is; or both have everything right.
    """
    kept = list(differences)
    for over in dict.fromkeys(one.over for one in kept):
        family = [
            i for i, one in enumerate(kept)
            if one.primary and one.over == over and one.p_value is not None
        ]  # fmt: skip
        adjusted = holm([p for i in family if (p := kept[i].p_value) is not None])
        for i, p in zip(family, adjusted, strict=True):
            kept[i] = replace(kept[i], p_holm=p)
    return [replace(one, verdict=_verdict(one, kept)) if one.primary else one for one in kept]


def _verdict(one: PairedDifference, every: Sequence[PairedDifference]) -> str:
    of = [one]
    if one.over == "seeds":  # uninformative if every seed is: their number says nothing of a floor
        of = [
            seed for seed in every
            if seed.primary and seed.over == "items" and _key(seed) == (
                one.variant, one.score, one.model, one.baseline
            )
        ]  # fmt: skip
    reasons = [_uninformative(seed) for seed in of]
    if reasons and all(reasons):
        return f"uninformative: {reasons[0]}"
    if one.over == "seeds" and one.n < SEEDS:
        return f"inconclusive: {one.n} of the {SEEDS} seeds that it takes"
    if one.p_holm is None:
        return "inconclusive: no test"
    if one.p_holm > 0.05:
        return "inconclusive"
    is_higher = one.difference > 0
    floored = [_above(seed) for seed in of if seed.floors]
    if floored and not any(above[0 if is_higher else 1] for above in floored):
        return "uninformative: the higher one is not above guessing where one can guess"
    return "higher" if is_higher else "lower"


def _key(one: PairedDifference) -> tuple[str, str, str, str]:
    """What a difference over seeds is called that this one is of."""
    model, baseline = seed_of(one.model), seed_of(one.baseline)
    stems = [label if seed is None else seed[0]
             for label, seed in ((one.model, model), (one.baseline, baseline))]  # fmt: skip
    return one.variant, one.score, stems[0], stems[1]


def _uninformative(one: PairedDifference) -> str:
    """Why the items tell nothing of a difference; empty if they can."""
    values = [value for value in (one.value, one.baseline_value) if value is not None]
    if is_share(one.score) and values and min(values) >= CEILING:
        return "both have everything right"
    return (
        "neither is above guessing where one can guess"
        if one.floors and not any(_above(one))
        else ""
    )


def _above(one: PairedDifference) -> tuple[bool, bool]:
    """Whether the model, and whether its baseline, is above its own floor in some kind of task."""
    # Of several floors one is passed by chance more easily: their levels share the 5 %.
    level = 1 - 0.05 / max(1, len(one.floors))
    return (
        any(_is_above(at.value, at.guess, at.n, level) for at in one.floors),
        any(_is_above(at.baseline_value, at.baseline_guess, at.n, level) for at in one.floors),
    )


def _is_above(value: float, guess: float, n: int, level: float) -> bool:
    """As if every cluster were one item: wide, so that guessing is not taken for a skill."""
    # Averages of older records could pass 1 where tasks were not asked by their weights.
    low = wilson_interval(round(min(value, 1.0) * n), n, level).low
    return low is not None and low > guess + ABOVE
