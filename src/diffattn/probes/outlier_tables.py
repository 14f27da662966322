"""Tables of an outlier scan: Table 5 of the paper, and the same statistics per layer."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from diffattn.probes.outliers import HIDDEN_PLACE, LOGIT_PLACE, OutlierScan, Parts, Tally, merged

RANKS = (1, 2, 3, 10, 100)
"""Ranks of the largest values in Table 5 of arXiv:2410.05258v2."""
WITH, WITHOUT = "all positions", "without position 0"
LOGITS, MAP_1, MAP_2, HIDDEN = "attention logits", "logits of A1", "logits of A2", "hidden states"
TokenText = Callable[[int], str]


def pooled(scan: OutlierScan) -> dict[str, Parts]:
    """Tallies over all layers by kind: :data:`MAP_1`, :data:`MAP_2` and :data:`HIDDEN`."""
    groups: dict[str, list[Parts]] = {}
    for (_, number), parts in scan.logits.items():
        groups.setdefault((MAP_1, MAP_2)[number], []).append(parts)
    groups[HIDDEN] = list(scan.hidden.values())
    return {name: _merge_parts(every) for name, every in sorted(groups.items()) if every}


def common_scale(scales: Sequence[float]) -> float | None:
    """The scale of the attention logits; ``None`` if layers have different scales."""
    return scales[0] if scales and len(set(scales)) == 1 else None


def outlier_summary(
    groups: Mapping[str, Parts], scale: float | None, token_text: TokenText
) -> dict[str, Any]:
    """Top-k, median, kurtosis and massive activations, with and without position 0.

    Returns kind of activation -> :data:`WITH` or :data:`WITHOUT` -> ``count``, ``top`` by rank,
    ``median``, ``kurtosis``, ``massive``, and ``largest``, values with their places. ``groups`` are
    of :func:`pooled`. Logits are also given for both maps together and, if ``scale`` is set, as
    ``... before scaling``.

    Source: arXiv:2410.05258v2, Table 5.
    """
    of_maps = {name: groups[name] for name in (MAP_1, MAP_2) if name in groups}
    named = {LOGITS: _merge_parts(list(of_maps.values()))} if of_maps else {}
    named |= {name: x for name, x in groups.items() if len(of_maps) > 1 or name not in of_maps}
    rows: dict[str, Any] = {}
    for name, parts in named.items():
        is_logits = name != HIDDEN
        place = LOGIT_PLACE if is_logits else HIDDEN_PLACE
        rows[name] = {
            which: _summarise(tally, place, token_text) for which, tally in _with_and_without(parts)
        }
        if is_logits and scale:
            rows[f"{name} before scaling"] = {
                which: _undo_scale(row, scale) for which, row in rows[name].items()
            }
    return rows


def layer_rows(scan: OutlierScan) -> list[dict[str, Any]]:
    """Per layer: largest, median and kurtosis of logits (per map, scaled) and hidden states."""
    rows = []
    for layer in sorted(scan.hidden):
        maps = {
            (MAP_1, MAP_2)[number]: parts
            for (of_layer, number), parts in sorted(scan.logits.items())
            if of_layer == layer
        }
        groups = {LOGITS: _merge_parts(list(maps.values()))} if maps else {}
        if len(maps) > 1:
            groups |= maps
        groups[HIDDEN] = scan.hidden[layer]
        facts = ("largest", "median", "kurtosis")
        rows.append(
            {
                name: {
                    which: {fact: getattr(tally, fact) for fact in facts}
                    for which, tally in _with_and_without(parts)
                }
                for name, parts in groups.items()
            }
        )
    return rows


def _summarise(tally: Tally, place: Sequence[str], token_text: TokenText) -> dict[str, Any]:
    values = tally.values.tolist()
    return {
        "count": tally.count,
        "top": {str(rank): values[rank - 1] for rank in RANKS if rank <= len(values)},
        "median": tally.median,
        "kurtosis": tally.kurtosis,
        "massive": tally.massive,
        "largest": [
            {"value": value, **_place(place, numbers, token_text)}
            for value, numbers in zip(values[:10], tally.places.tolist(), strict=False)
        ],
    }


def _place(names: Sequence[str], numbers: Sequence[int], token_text: TokenText) -> dict[str, Any]:
    """A place by name. Layers, heads, channels and positions count from 0, maps from 1."""
    entry: dict[str, Any] = {}
    for name, value in zip(names, numbers, strict=True):
        is_token = name.endswith("token")
        entry[name] = token_text(value) if is_token else value + (name == "map")
    return entry


def _undo_scale(row: dict[str, Any], scale: float) -> dict[str, Any]:
    """A row for logits before scaling. ``massive`` and ``largest`` are left out."""
    kept = {"count": row["count"], "kurtosis": row["kurtosis"], "median": row["median"] / scale}
    return kept | {"top": {rank: value / scale for rank, value in row["top"].items()}}


def _with_and_without(parts: Parts) -> list[tuple[str, Tally]]:
    return [(WITH, merged([parts[True], parts[False]])), (WITHOUT, parts[False])]


def _merge_parts(every: Sequence[Parts]) -> Parts:
    return {of_first: merged([parts[of_first] for parts in every]) for of_first in (True, False)}
