"""Attention maps of one example: A₁, A₂ and their signed difference side by side."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from diffattn.lab.report.page.charts import SEQUENTIAL, Chart, layout
from diffattn.lab.report.page.elements import Code, Element, Pair, Part, Text
from diffattn.lab.report.page.runs import Study
from diffattn.lab.report.page.wording import WHITE_SPACE, number, type_name

# Orange (subtracted) over white to blue (added), a pair that stays distinct under the common
# colour-vision deficiencies.
_DIVERGING = [
    [0.0, "#b35806"],
    [0.25, "#f1a340"],
    [0.5, "#ffffff"],
    [0.75, "#67a9cf"],
    [1.0, "#053061"],
]


def attention_maps(study: Study, prefix: str) -> list[Element]:
    """Maps of one head of every attention type in ``maps.json``; empty without that file."""
    if study.maps is None:
        return []
    tokens, layers = study.maps["tokens"], study.maps["layers"]
    heads: list[Element] = []
    for index, name in enumerate(name for name in study.types if name in layers):
        entry = layers[name]
        where = ", ".join(f"{key} {entry.get(key)}" for key in ("run", "layer", "head"))
        charts = _charts(name, entry, tokens, f"{prefix}{index}")
        heads.append(Part(f"{type_name(name)} ({where})", [Pair(charts, "maps")]))
    reading = Text(
        "Each map is of one head, all on the same text. A row of a map is a query, a column a key; "
        "␣ is a space, ⏎ a line break. Rows of A, A₁ and A₂ sum to 1, rows of A₁ − λA₂ to 1 − λ. "
        "One head is an example, not a measurement."
    )
    return [reading, Code("".join(map(str, tokens))), *heads]


def _charts(
    attention_type: str, entry: dict[str, Any], tokens: Sequence[str], prefix: str
) -> list[Chart]:
    first = np.array(entry["map_1"], dtype=np.float64)
    if "map_2" not in entry:
        caption = "A, the one map of softmax attention"
        return [_heatmap(first, tokens, _limit(first), caption, f"{prefix}-a")]
    second = np.array(entry["map_2"], dtype=np.float64)
    difference = np.array(entry["difference"], dtype=np.float64)
    # One scale for both maps, so that equal colours are equal weights.
    limit, signed_limit = _limit(first, second), _limit(np.abs(difference))
    lam = number(entry["lam"], 3)
    caption = f"A₁ − λA₂, signed: blue is added, orange is subtracted; λ = {lam}"
    if attention_type == "diff_v2":
        caption += " (it differs from token to token)"
    return [
        _heatmap(first, tokens, limit, "A₁, the map that is added", f"{prefix}-a1"),
        _heatmap(second, tokens, limit, "A₂, the map that is subtracted", f"{prefix}-a2"),
        _heatmap(difference, tokens, signed_limit, caption, f"{prefix}-d", signed=True),
    ]


def _heatmap(
    weights: np.ndarray,
    tokens: Sequence[str],
    limit: float,
    caption: str,
    element_id: str,
    *,
    signed: bool = False,
) -> Chart:
    # Numbers make repeated tokens distinct categories on the axes.
    visible = [str(token).translate(WHITE_SPACE) or "∅" for token in tokens]
    places = [f"{i} {text}" for i, text in enumerate(visible)]
    labels = [text if len(text) <= 9 else f"{text[:8]}…" for text in visible]
    size = 7 if len(tokens) > 30 else 10
    ticks = {
        "tickvals": list(range(len(places))),
        "ticktext": labels,
        "tickfont": {"size": size, "family": "monospace"},
        "showgrid": False,
        "constrain": "domain",
        "ticks": "",
    }
    trace = {
        "type": "heatmap",
        "z": np.round(weights, 3).tolist(),
        "x": places,
        "y": places,
        "zmin": -limit if signed else 0,
        "zmax": limit,
        "colorscale": _DIVERGING if signed else SEQUENTIAL,
        "colorbar": {"orientation": "h", "thickness": 8, "len": 0.7, "y": 0, "yanchor": "top"},
        "hovertemplate": ["query %{y}", "key %{x}", "weight %{z:.4f}"],
    }
    x_axis = {**ticks, "tickangle": -90, "side": "top"}
    y_axis = {**ticks, "autorange": "reversed", "scaleanchor": "x"}
    return Chart(
        element_id=element_id,
        traces=[trace],
        look=layout("", "", xaxis=x_axis, yaxis=y_axis, margin={"l": 6, "r": 6, "t": 26, "b": 44}),
        caption=f"{caption}. Colours saturate at {'±' if signed else ''}{number(limit, 2)}.",
        square=True,
    )


def _limit(*maps: np.ndarray) -> float:
    """Weight at which colours saturate: those of the first tokens would leave the map white."""
    weights = np.concatenate([m[m > 0] for m in maps])
    return max(float(np.quantile(weights, 0.97)), 0.01) if weights.size else 1.0
