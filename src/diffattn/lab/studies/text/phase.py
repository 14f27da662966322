"""When a run has learned to use its context."""

import itertools
from collections.abc import Mapping, Sequence
from typing import Any


def phase_step(rows: Sequence[Mapping[str, Any]], threshold: float) -> int | None:
    """The first of two evaluations in a row that lie below a loss on repeated bigrams, in steps.

    Two, so that one lucky evaluation does not count.

    Args:
        rows: Of ``metrics.jsonl``, in order.
        threshold: Nats per token.

    Returns:
        The step, or ``None`` if there are no two such evaluations.
    """
    measured = [
        (row["step"], row["validation_parts"]["repeated_bigram"])
        for row in rows
        if "repeated_bigram" in row.get("validation_parts", {})
    ]
    for (step, first), (_, second) in itertools.pairwise(measured):
        if max(first, second) < threshold:
            return int(step)
    return None
