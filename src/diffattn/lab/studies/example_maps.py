"""Attention maps of one head, as ``maps.json`` holds them."""

from typing import Any

import torch

from diffattn.probes.attention_rows import attention_rows


def maps_of(model: Any, ids: torch.Tensor, layer: int, head: int) -> dict[str, Any]:
    """Attention maps of one head on the tokens ``ids``, rounded to four digits, and its λ."""
    rows = attention_rows(model, ids[None])[layer]
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
