"""Maximum, median and kurtosis of many activations, in one pass and fixed memory; Table 5."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
from torch import Tensor

from diffattn.errors import DiffAttnError
from diffattn.ops.inputs.masking import at_least_float32
from diffattn.probes.layer_reader import AttentionInputs, LogitRows

TOP = 100
"""Number of largest values that are kept, each with its place (layer, head, position ...)."""
MEDIAN_ERROR = 2**-8
"""Largest relative error of a median, 0.4 %: half the width of a bin."""
RANKS = (1, 2, 3, 10, 100)
"""Ranks of the largest values in Table 5 of arXiv:2410.05258v2."""
WITH, WITHOUT = "all positions", "without position 0"
LOGITS, MAP_1, MAP_2, HIDDEN = "attention logits", "logits of A1", "logits of A2", "hidden states"
TokenText = Callable[[int], str]
_BINS = (1 << 15) - (1 << 7)  # the finite bfloat16 numbers from 0 up


class Tally:
    r"""Statistics of numbers: the largest values, a histogram of absolute values, sums of powers.

    Lower edges of bins are the bfloat16 numbers from 0 up, 128 per power of two. So
    :math:`|x| \in [b, b (1 + 2^{-7}))`, and the middle of a bin has a relative error of at most
    :data:`MEDIAN_ERROR` for numbers above 1e-38. It always takes 256 KiB of memory.

    Source: arXiv:2410.05258v2, Table 5. The paper states neither the corpus nor the estimator.
    """

    def __init__(self, width: int) -> None:
        self.count = 0
        self.powers = torch.zeros(4, dtype=torch.float64)
        """Sums of x, x², x³ and x⁴."""
        self.histogram = torch.zeros(_BINS, dtype=torch.int64)
        self.values = torch.zeros(0, dtype=torch.float64)
        """The largest absolute values, at most :data:`TOP`, largest first."""
        self.places = torch.zeros(0, width, dtype=torch.int64)

    def add(self, x: Tensor, place_of: Callable[[Tensor], Tensor]) -> None:
        """Count numbers ``[n]``; ``place_of`` turns indices ``[m]`` into places ``[m, width]``."""
        if not x.numel():
            return
        sizes = x.abs()
        self.count += x.numel()
        squares = x.double().square()
        self.powers += torch.stack(
            [x.sum(dtype=torch.float64), squares.sum(), (squares * x).sum(), squares.square().sum()]
        ).cpu()
        # The upper 16 bits of a float32 are the largest bfloat16 that is not above it.
        patterns = sizes.float().view(torch.int32) >> 16
        self.histogram += torch.bincount(patterns, minlength=_BINS).cpu()
        least = float(self.values[-1]) if len(self.values) == TOP else -1.0
        wanted = (sizes > least).nonzero()[:, 0]
        values, order = sizes[wanted].topk(min(TOP, len(wanted)))
        self._keep(values.double().cpu(), place_of(wanted[order]).cpu())

    def merge(self, other: "Tally") -> None:
        """Add all numbers that another tally has counted."""
        self.count += other.count
        self.powers += other.powers
        self.histogram += other.histogram
        self._keep(other.values, other.places)

    def _keep(self, values: Tensor, places: Tensor) -> None:
        values, places = torch.cat([self.values, values]), torch.cat([self.places, places])
        order = values.argsort(descending=True, stable=True)[:TOP]
        self.values, self.places = values[order], places[order]

    @property
    def largest(self) -> float:
        """The largest absolute value; 0 without values."""
        return float(self.values[0]) if len(self.values) else 0.0

    @property
    def median(self) -> float:
        """Median of the absolute values (the lower one of two), within :data:`MEDIAN_ERROR`."""
        if not self.count:
            return 0.0
        rank = (self.count + 1) // 2
        number = int(torch.searchsorted(self.histogram.cumsum(0), rank))
        low, high = _edges(torch.tensor([number, number + 1])).tolist()
        return (low + high) / 2 if number else 0.0

    @property
    def kurtosis(self) -> float | None:
        r""":math:`\mathrm{E}(x - \mu)^4 / (\mathrm{E}(x - \mu)^2)^2`; ``None`` for variance 0.

        Source: arXiv:2306.12929 (Bondarenko et al.), section 5.
        """
        if not self.count:
            return None
        mean, square, cube, fourth = (self.powers / self.count).tolist()
        variance = square - mean**2
        # The variance is a difference of sums: below their rounding error it counts as 0.
        if variance <= 1e-13 * square:
            return None
        central = fourth - 4 * mean * cube + 6 * mean**2 * square - 3 * mean**4
        return float(central / variance**2)

    @property
    def massive(self) -> int:
        """Number of values above 100 and above 1,000 times the median.

        Values within one bin (0.8 %) of the border may be miscounted.

        Source: arXiv:2402.17762 (massive activations), section 2.
        """
        border = max(100.0, 1000.0 * self.median)
        return int(self.histogram[_edges(torch.arange(_BINS)) >= border].sum())

    def to_json(self) -> dict[str, Any]:
        """The tally as JSON values."""
        used = self.histogram.nonzero()[:, 0].tolist() or [0, -1]
        first, last = used[0], used[-1] + 1
        return {
            "count": self.count,
            "powers": self.powers.tolist(),
            "first_bin": first,
            "bins": self.histogram[first:last].tolist(),
            "values": self.values.tolist(),
            "places": self.places.tolist(),
        }

    @classmethod
    def from_json(cls, value: dict[str, Any], width: int) -> "Tally":
        """Read the result of :meth:`to_json`."""
        tally = cls(width)
        tally.count = value["count"]
        tally.powers += torch.tensor(value["powers"], dtype=torch.float64)
        first, bins = value["first_bin"], torch.tensor(value["bins"], dtype=torch.int64)
        tally.histogram[first : first + len(bins)] += bins
        tally._keep(
            torch.tensor(value["values"], dtype=torch.float64),
            torch.tensor(value["places"], dtype=torch.int64).reshape(-1, width),
        )
        return tally


def merged(tallies: list[Tally]) -> Tally:
    """One tally of all numbers in ``tallies``, which are not changed."""
    whole = Tally(tallies[0].places.shape[1])
    for tally in tallies:
        whole.merge(tally)
    return whole


LOGIT_PLACE = ("layer", "map", "head", "text", "query", "key", "query_token", "key_token")
HIDDEN_PLACE = ("layer", "channel", "text", "position", "token")
Parts = dict[bool, Tally]
"""True -> tally of entries whose key or token is at position 0. False -> tally of all others."""


@dataclass
class OutlierScan:
    """Attention logits and hidden states of any number of texts, layer by layer.

    Logits are of visible keys, after RoPE and the factor 1/√d. Massive activations are mostly at
    position 0, so it has a separate tally. Memory depends only on the number of layers.

    Source: arXiv:2410.05258v2, Table 5.
    """

    logits: dict[tuple[int, int], Parts] = field(default_factory=dict)
    """Layer and map, both counted from 0 -> tallies of the attention logits."""
    hidden: dict[int, Parts] = field(default_factory=dict)
    """Layer -> tallies of the residual stream after it."""
    scales: dict[int, float] = field(default_factory=dict)
    """Layer -> scale of its attention logits."""

    def add_logits(
        self, layer: int, inputs: AttentionInputs, rows: LogitRows, tokens: Tensor, text: int
    ) -> None:
        """Count the finite logits of some rows of a layer, of the text number ``text``."""
        self.scales[layer] = inputs.scale
        first = torch.zeros_like(rows.visible)
        first[:, 0] = True
        for of_first in (True, False):
            pairs = (rows.visible & (first == of_first)).nonzero()  # [n, 2]
            queries, keys = pairs.unbind(1)
            seen = rows.logits[:, :, queries, keys]  # [H, maps, n]
            _require_finite(f"attention logits of layer {layer}", seen)
            for number, x in enumerate(seen.unbind(1)):
                place_of = partial(_logit_places, (layer, number, text), tokens, pairs, rows.start)
                parts = self.logits.setdefault((layer, number), _parts(len(LOGIT_PLACE)))
                parts[of_first].add(x.flatten(), place_of)

    def add_hidden(self, layer: int, x: Tensor, tokens: Tensor, text: int) -> None:
        """Count the finite residual stream ``[T, hidden_size]`` after one block."""
        _require_finite(f"hidden states of layer {layer}", x)
        x = at_least_float32(x)
        parts = self.hidden.setdefault(layer, _parts(len(HIDDEN_PLACE)))
        for of_first, part, begin in ((True, x[:1], 0), (False, x[1:], 1)):
            place_of = partial(_hidden_places, (layer, text), tokens, begin, x.shape[1])
            parts[of_first].add(part.flatten(), place_of)


def _logit_places(
    where: tuple[int, int, int], tokens: Tensor, pairs: Tensor, start: int, index: Tensor
) -> Tensor:
    """Columns of :data:`LOGIT_PLACE`; ``index`` is a flat index into ``[heads, pairs]``."""
    layer, number, text = where
    query, key = pairs[index % len(pairs)].unbind(1)
    head, query = index // len(pairs), query + start
    return _columns([layer, number, head, text, query, key, tokens[query], tokens[key]], index)


def _hidden_places(
    where: tuple[int, int], tokens: Tensor, begin: int, width: int, index: Tensor
) -> Tensor:
    """Columns of :data:`HIDDEN_PLACE`; ``index`` is a flat index into ``[tokens, channels]``."""
    layer, text = where
    position = index // width + begin
    return _columns([layer, index % width, text, position, tokens[position]], index)


def _edges(patterns: Tensor) -> Tensor:
    """Lower edges of bins, float64. The edge after the last bin is the largest float32 number."""
    edges = (patterns.int() << 16).view(torch.float32).double()
    return edges.nan_to_num(posinf=torch.finfo(torch.float32).max)


def _parts(width: int) -> Parts:
    return {True: Tally(width), False: Tally(width)}


def _columns(named: list[Any], index: Tensor) -> Tensor:
    columns = [index.new_full(index.shape, x) if isinstance(x, int) else x for x in named]
    return torch.stack(columns, dim=1)


def _require_finite(quantity: str, x: Tensor) -> None:
    if not bool(x.isfinite().all()):
        raise DiffAttnError(f"outliers: {quantity} must be finite, got NaN or infinity.")


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
