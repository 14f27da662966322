"""A sweep of learning rates that is extended while a leading rate lies at its edge."""

from collections.abc import Callable, Sequence
from typing import TypeVar

EXTENSIONS = 3
"""How often a sweep may be extended by a factor of 2."""
Score = TypeVar("Score")


def swept_rates(
    rates: Sequence[float],
    score: Callable[[float], Score | None],
    order: Callable[[Score], float | tuple[float, ...]],
    *,
    leading: int = 1,
    extensions: int = EXTENSIONS,
) -> tuple[dict[float, Score], list[float]]:
    """Replay a sweep as far as its runs are done.

    Args:
        score: From a rate to the score of its runs; ``None`` while a run is missing.
        order: From a score to its sort key; a smaller key is better.
        leading: How many of the best rates must lie inside the sweep.

    Returns:
        The scores so far, by rising rate; and the rates that must run before a rate is chosen.
    """
    rates = sorted(rates)
    for extension in range(extensions + 1):
        scores = {rate: value for rate in rates if (value := score(rate)) is not None}
        missing = [rate for rate in rates if rate not in scores]
        best = sorted(scores, key=lambda rate: order(scores[rate]))[:leading]
        edge = next((rate for rate in best if rate in (rates[0], rates[-1])), None)
        if missing or edge is None or extension == extensions:
            break
        rates = sorted([*rates, 2 * edge if edge == rates[-1] else edge / 2])
    return scores, missing
