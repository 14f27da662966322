"""Attention maps of one example: A₁, A₂ and their signed difference side by side."""

from collections.abc import Sequence
from html import escape, unescape
from typing import Any

import numpy as np

from diffattn.errors import CheckpointError
from diffattn.report.page.charts import embed, layout
from diffattn.report.page.wording import esc, listing, number, type_name
from diffattn.report.study.files import BASELINE, Study, is_number

_HEIGHT = 430
_MAX_LABEL = 9
# Sequential: white to one dark hue. Diverging: orange (subtracted) over white to blue (added),
# a pair that stays distinct under the common colour-vision deficiencies.
_SEQUENTIAL = [[0.0, "#ffffff"], [0.25, "#c6dbef"], [0.6, "#4292c6"], [1.0, "#08306b"]]
_DIVERGING = [
    [0.0, "#b35806"],
    [0.25, "#f1a340"],
    [0.5, "#ffffff"],
    [0.75, "#67a9cf"],
    [1.0, "#053061"],
]
_COLORBAR = {
    "orientation": "h",
    "thickness": 8,
    "len": 0.7,
    "y": -0.03,
    "yanchor": "top",
    "ypad": 0,
    "tickfont": {"size": 10},
    "nticks": 5,
}
_READING = (
    "<p>Each row shows one head of one model, all on the same text. A row of a map is a "
    "query, a column a key; ␣ is a space, ⏎ a line break. Rows of A, A₁ and A₂ sum to 1, rows of "
    "A₁ − λA₂ to 1 − λ. One head is an example, not a measurement.</p>\n"
)
_VISIBLE = str.maketrans({" ": "␣", "\n": "⏎", "\t": "⇥", "\r": "␍"})


def map_charts(study: Study, prefix: str) -> str:
    """Maps of every attention type in ``maps.json``, in the study's order.

    Args:
        study: A study whose maps were recorded.
        prefix: Start of the element ids, unique in the page.

    Returns:
        HTML.

    Raises:
        CheckpointError: A map is not square over the tokens, or not numeric.
    """
    assert study.maps is not None
    tokens, layers = study.maps["tokens"], study.maps["layers"]
    text = esc("".join(map(str, tokens)))
    reading = f'<div class="reading">{_READING}<p>The text:</p><pre>{text}</pre></div>\n'
    order = [name for name in study.types if name in layers]
    parts = [] if BASELINE in order else [reading]
    for index, name in enumerate(order):
        entry = layers[name]
        if not isinstance(entry, dict):
            raise CheckpointError(f"maps.json: {name} must hold maps, got {entry!r}.")
        aside = reading if name == BASELINE else ""
        parts.append(_row(name, entry, tokens, f"{prefix}{index}", aside))
    absent = [type_name(name) for name in study.types if name not in layers]
    if absent:
        parts.append(f'<p class="gap">No maps were recorded for {esc(listing(absent))}.</p>\n')
    return "".join(parts)


def _row(
    attention_type: str, entry: dict[str, Any], tokens: Sequence[str], prefix: str, aside: str
) -> str:
    """The maps of one head of one model, and what stands beside them."""
    title = (
        f"<h4>{esc(type_name(attention_type))} "
        f'<span class="runs">run {esc(entry.get("run"))}, layer {esc(entry.get("layer"))}, '
        f"head {esc(entry.get('head'))}</span></h4>\n"
    )
    first = _matrix(entry, "map_1", attention_type, tokens)
    if attention_type == BASELINE or "map_2" not in entry:
        limit = _limit(first)
        chart = _heatmap(first, tokens, limit, "A, the one map of softmax attention", f"{prefix}-a")
        return f'{title}<div class="maps">\n{chart}{aside}</div>\n'
    second = _matrix(entry, "map_2", attention_type, tokens)
    difference = _matrix(entry, "difference", attention_type, tokens)
    # One scale for both maps, so that equal colours are equal weights.
    limit = _limit(first, second)
    signed = "A₁ − λA₂, signed: blue is added, orange is subtracted; λ = " + _lam(entry)
    if attention_type == "diff_v2":
        signed += " (it differs from token to token)"
    charts = [
        _heatmap(first, tokens, limit, "A₁, the map that is added", f"{prefix}-a1"),
        _heatmap(second, tokens, limit, "A₂, the map that is subtracted", f"{prefix}-a2"),
        _heatmap(
            difference, tokens, _limit(np.abs(difference)), signed, f"{prefix}-d", signed=True
        ),
    ]
    return f'{title}<div class="maps">\n{"".join(charts)}{aside}</div>\n'


def _heatmap(
    weights: np.ndarray,
    tokens: Sequence[str],
    limit: float,
    caption: str,
    element_id: str,
    *,
    signed: bool = False,
) -> str:
    # Numbered names keep repeated tokens apart on the axes.
    places = [f"{i} {_visible(token)}" for i, token in enumerate(tokens)]
    labels = [_visible(token, _MAX_LABEL) for token in tokens]
    size = 7 if len(tokens) > 30 else 10
    room = 12 + round(0.62 * size * max((len(unescape(text)) for text in labels), default=0))
    ticks = {
        "tickmode": "array",
        "tickvals": list(range(len(places))),
        "ticktext": labels,
        "tickfont": {"size": size, "family": "monospace"},
        "showgrid": False,
        "constrain": "domain",
        "automargin": False,
        "ticks": "",
    }
    trace = {
        "type": "heatmap",
        "z": weights.tolist(),
        "x": places,
        "y": places,
        "zmin": -limit if signed else 0,
        "zmax": limit,
        "colorscale": _DIVERGING if signed else _SEQUENTIAL,
        "colorbar": _COLORBAR,
        "hovertemplate": "query %{y}<br>key %{x}<br>weight %{z:.4f}<extra></extra>",
    }
    look = layout(
        "",
        "",
        xaxis={**ticks, "tickangle": -90, "side": "top"},
        yaxis={**ticks, "autorange": "reversed", "scaleanchor": "x"},
        margin={"l": room, "r": 6, "t": room + 20, "b": 34},
    )
    note = f"{esc(caption)}. Colours saturate at {'±' if signed else ''}{number(limit, 2)}."
    return embed([trace], look, element_id, note, height=_HEIGHT, label=caption, square=True)


def _matrix(
    entry: dict[str, Any], key: str, attention_type: str, tokens: Sequence[str]
) -> np.ndarray:
    """One map, checked to be square over the tokens."""
    value, size = entry.get(key), len(tokens)
    rows = value if isinstance(value, list) else []
    square = len(rows) == size and all(
        isinstance(row, list) and len(row) == size and all(is_number(x) for x in row)
        for row in rows
    )
    if not square:
        raise CheckpointError(
            f"maps.json: {key} of {attention_type} must be {size} rows of {size} numbers, "
            f"got {type(value).__name__} of length {len(rows)}."
        )
    return np.array(rows, dtype=np.float64).reshape(size, size)


def _limit(*maps: np.ndarray) -> float:
    """Where colours saturate: the first tokens see few keys, and their large weights would
    otherwise leave the rest of the map white."""
    weights = np.concatenate([m[m > 0] for m in maps])
    return max(float(np.quantile(weights, 0.97)), 0.01) if weights.size else 1.0


def _lam(entry: dict[str, Any]) -> str:
    lam = entry.get("lam")
    return ", ".join(number(x, 3) for x in lam) if isinstance(lam, list) else number(lam, 3)


def _visible(token: Any, longest: int | None = None) -> str:
    """A token with its white space made visible, escaped: plotly reads labels as HTML."""
    text = str(token).translate(_VISIBLE) or "∅"
    if longest is not None and len(text) > longest:
        text = text[: longest - 1] + "…"
    return escape(text, quote=False)  # plotly knows the names of <, > and &, not of quotes
