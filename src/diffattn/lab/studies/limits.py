"""What a study cannot show, and from where on it shows something: the same for all of them."""

from collections.abc import Iterable

from diffattn.models.config.configuration_diff_transformer import DiffTransformerConfig

# The papers' models have 8 DIFF heads or more.
SMALLEST_TESTED_HEADS = 8
MARGIN = 0.1
"""Nats per token by which attention must gain before what kinds of it gain is compared."""


def few_heads(models: Iterable[DiffTransformerConfig]) -> int | None:
    """DIFF heads of the model with the fewest, if that is fewer than the papers have.

    V2 is not counted: it has as many heads as the Transformer.

    Args:
        models: Of a study.
    """
    fewest = min((m.num_heads for m in models if m.attention.lambda_vectors), default=None)
    return fewest if fewest is not None and fewest < SMALLEST_TESTED_HEADS else None


def heads_below(models: Iterable[DiffTransformerConfig]) -> str:
    """A sentence about too few heads with a space after it, or nothing."""
    heads = few_heads(models)
    if heads is None:
        return ""
    what = "1 DIFF head is" if heads == 1 else f"{heads} DIFF heads are"
    return f"{what} fewer than the papers' {SMALLEST_TESTED_HEADS} or more. "


def spread(num_seeds: int) -> str:
    """What intervals are over."""
    if num_seeds == 1:
        return "With one seed there is no interval: a difference here may be chance."
    return f"Intervals are over {num_seeds} seeds of initial weights and data order."
