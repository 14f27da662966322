"""Choose each model's baseline, pool differences over seeds, and decide the verdicts."""

import re
from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from diffattn.lab.evaluation.metrics import is_share
from diffattn.lab.records.evaluations import PairedDifference
from diffattn.lab.stats.intervals import wilson_interval
from diffattn.lab.stats.paired import holm, paired_difference, paired_t_test

CEILING = 0.99  # if both shares are this large, the items are too easy
SEEDS = 3  # fewest seeds for a verdict over seeds, as in ``docs/findings/claims.md``
ABOVE = 0.01  # the lower end of a score's interval must exceed guessing by this margin
_SEED = re.compile(r"(?P<stem>.+)-seed(?P<seed>\d{1,18})")


def seed_of(label: str) -> tuple[str, int] | None:
    """``("diff", 3)`` of ``diff-seed3``; ``None`` for another name."""
    match = _SEED.fullmatch(label)
    return None if match is None else (match["stem"], int(match["seed"]))


def partners(labels: Sequence[str]) -> list[tuple[str, str]]:
    """Pairs of a model and its baseline, which is the first model or its run with the same seed.

    If the first label is ``NAME-seedK``, ``OTHER-seedJ`` is compared with ``NAME-seedJ`` if there
    is one, else with the first. Other seeds of the first model's NAME are not compared.
    """
    first, pairs = seed_of(labels[0]) if labels else None, []
    for label in labels[1:]:
        seed = seed_of(label)
        if first is None or seed is None:
            pairs.append((label, labels[0]))
        elif seed[0] != first[0]:
            same = f"{first[0]}-seed{seed[1]}"
            pairs.append((label, same if same in labels else labels[0]))
    return pairs


def over_seeds(items: Sequence[PairedDifference]) -> list[PairedDifference]:
    """Primary differences pooled over seeds that both models have. The interval is Student's t over
    seeds: it describes the model type, not trained weights."""
    groups: dict[tuple[str, str, str, str], list[PairedDifference]] = {}
    for item in items:
        a, b = seed_of(item.model), seed_of(item.baseline)
        if item.primary and a is not None and b is not None and a[1] == b[1]:
            groups.setdefault(_name_over_seeds(item), []).append(item)
    verdicts = []
    for (_, _, model, baseline), group in groups.items():
        values = [item.difference for item in group]
        interval = paired_difference(values, [0.0] * len(values))
        if interval.low == interval.high:  # equal differences do not tell the spread of seeds
            none = "none: no seed differs from another"
            interval = replace(interval, low=None, high=None, method=none)
        verdicts.append(
            replace(
                group[0],
                model=model,
                baseline=baseline,
                over="seeds",
                difference=interval.mean,
                **interval.around_mean(),
                p_value=paired_t_test(values),
                test="Student t over seeds",
                num_items=sum(item.num_items for item in group),
                num_unpaired=sum(item.num_unpaired for item in group),
                num_other_text=sum(item.num_other_text for item in group),
                value=float(np.mean([item.value for item in group])),
                baseline_value=float(np.mean([item.baseline_value for item in group])),
                floors=[],
            )
        )
    return verdicts


def with_verdicts(differences: Sequence[PairedDifference]) -> list[PairedDifference]:
    """Add adjusted p-values and verdicts to the primary scores.

    Holm's correction is over the primary scores of all models: one family over items, one over
    seeds. A verdict is about these models, not about the claim of a paper:

    - *higher* or *lower*: the adjusted p-value is at most 0.05.
    - *inconclusive*: it is larger, there is no test, or there are fewer than ``SEEDS`` seeds.
    - *uninformative*: no model, or only the lower one, is above guessing in any task whose guess is
      known; or both scores are at least ``CEILING``.
    """
    kept = list(differences)
    for over in dict.fromkeys(item.over for item in kept):
        p_values = {
            i: item.p_value
            for i, item in enumerate(kept)
            if item.primary and item.over == over and item.p_value is not None
        }
        for i, p in zip(p_values, holm(list(p_values.values())), strict=True):
            kept[i] = replace(kept[i], p_holm=p)
    return [replace(item, verdict=_verdict(item, kept)) if item.primary else item for item in kept]


def _verdict(item: PairedDifference, every: Sequence[PairedDifference]) -> str:
    parts = [item]
    if item.over == "seeds":  # uninformative if all seeds are
        name = _name_over_seeds(item)
        of_seeds = [x for x in every if x.primary and x.over == "items"]
        parts = [x for x in of_seeds if _name_over_seeds(x) == name]
    reasons = [_uninformative(part) for part in parts]
    if reasons and all(reasons):
        return f"uninformative: {reasons[0]}"
    if item.over == "seeds" and item.n < SEEDS:
        return f"inconclusive: {item.n} of the {SEEDS} seeds that it takes"
    if item.p_holm is None:
        return "inconclusive: no test"
    if item.p_holm > 0.05:
        return "inconclusive"
    is_higher = item.difference > 0
    above = [_above_floor(part)[0 if is_higher else 1] for part in parts if part.floors]
    if above and not any(above):
        return "uninformative: the higher one is not above guessing where one can guess"
    return "higher" if is_higher else "lower"


def _name_over_seeds(item: PairedDifference) -> tuple[str, str, str, str]:
    """Variant, score, model and baseline of the pooled difference to which one seed belongs."""
    model, baseline = ((seed_of(x) or (x, 0))[0] for x in (item.model, item.baseline))
    return item.variant, item.score, model, baseline


def _uninformative(item: PairedDifference) -> str:
    """The reason why the items cannot show a difference; empty if they can."""
    values = [value for value in (item.value, item.baseline_value) if value is not None]
    if is_share(item.score) and values and min(values) >= CEILING:
        return "both have everything right"
    if item.floors and not any(_above_floor(item)):
        return "neither is above guessing where one can guess"
    return ""


def _above_floor(item: PairedDifference) -> tuple[bool, bool]:
    """Whether the model, and whether its baseline, is above guessing in at least one task. This is
    conservative: each of the n clusters counts as one item."""
    # With several tasks one is passed by chance more easily, so they share the 5 %.
    level = 1 - 0.05 / max(1, len(item.floors))

    def is_above(value: float, guess: float, n: int) -> bool:
        low = wilson_interval(round(min(value, 1.0) * n), n, level).low
        return low is not None and low > guess + ABOVE

    return (
        any(is_above(at.value, at.guess, at.n) for at in item.floors),
        any(is_above(at.baseline_value, at.baseline_guess, at.n) for at in item.floors),
    )
