"""What judges of all kinds share: limits, the sentences that state them, and example maps."""

from collections.abc import Iterable
from typing import Any

import torch

from diffattn.models.configuration_diff_transformer import DiffTransformerConfig
from diffattn.probes.attention_rows import LayerRows

# The papers' models have 8 DIFF heads or more.
SMALLEST_TESTED_HEADS = 8
MARGIN = 0.1
"""Nats per token that attention must gain before types of attention are compared."""


def few_heads(models: Iterable[DiffTransformerConfig]) -> int | None:
    """The smallest number of DIFF heads among V1 and Shared DIFF models, if it is below 8."""
    heads = min((m.num_heads for m in models if m.uses("lambda_vectors")), default=8)
    return heads if heads < SMALLEST_TESTED_HEADS else None


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


def maps_of(rows: LayerRows, head: int) -> dict[str, Any]:
    """Attention maps of one head of a layer, as ``maps.json`` holds them, and its λ."""
    first, *second = rows.maps[head]
    entry: dict[str, Any] = {"map_1": _rounded(first)}
    if second:
        entry["map_2"] = _rounded(second[0])
        entry["difference"] = _rounded(rows.signed[head])
        # Each row of the difference sums to 1 − λ. V2 has one λ per row: take the mean.
        entry["lam"] = round(1.0 - float(rows.signed[head].sum(-1).mean()), 4)
    return entry


def _rounded(x: torch.Tensor) -> list[list[float]]:
    return [[round(value, 4) for value in row] for row in x.tolist()]
