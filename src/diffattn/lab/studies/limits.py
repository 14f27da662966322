"""Limits that all studies share, and the sentences that state them."""

from collections.abc import Iterable

from diffattn.models.configuration_diff_transformer import DiffTransformerConfig

# The papers' models have 8 DIFF heads or more.
SMALLEST_TESTED_HEADS = 8
MARGIN = 0.1
"""Nats per token that attention must gain before types of attention are compared."""


def few_heads(models: Iterable[DiffTransformerConfig]) -> int | None:
    """The smallest number of DIFF heads among V1 and Shared DIFF models, if it is below 8."""
    few = (m.num_heads for m in models if m.uses("lambda_vectors"))
    return min((heads for heads in few if heads < SMALLEST_TESTED_HEADS), default=None)


def heads_below(models: Iterable[DiffTransformerConfig]) -> str:
    """A sentence, with a space after it, about too few heads; empty if there are enough."""
    heads = few_heads(models)
    if heads is None:
        return ""
    count = "1 DIFF head is" if heads == 1 else f"{heads} DIFF heads are"
    return f"{count} fewer than the papers' {SMALLEST_TESTED_HEADS} or more. "


def spread(num_seeds: int) -> str:
    """A sentence about the number of seeds that intervals are computed from."""
    if num_seeds == 1:
        return "With one seed there is no interval: a difference here may be chance."
    return f"Intervals are over {num_seeds} seeds of initial weights and data order."
