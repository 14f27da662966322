"""Charts of an analysis: by layer, by head, by distance, and λ."""

from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise
from operator import itemgetter
from statistics import fmean
from typing import Any

from diffattn.lab.records.analysis import AnalysisResult, ModelAnalysis
from diffattn.lab.report.analysis.tables import (
    ALL_POSITIONS,
    HIDDEN,
    LOGITS,
    label_of,
    map_correlation,
)
from diffattn.lab.report.page.charts import (
    PALETTE,
    Chart,
    heat_map,
    interval_bars,
    layout,
    line,
    map_layout,
    model_colors,
    point_line,
)

_LAYER_COLORS = (*PALETTE, "#4d4d4d")
_UNIFORM = "uniform map"
_AROUND = "around their row means, mean over heads"
_PAIRS = "signed maps, mean over pairs of heads"

_OfLayer = Callable[[Any], float | None]


def _mean(name: str) -> _OfLayer:
    """Mean of one quantity over the heads that have it; ``None`` if no head has it."""

    def read(layer: Any) -> float | None:
        known = [x for x in layer["heads"].get(name, ()) if x is not None]
        return fmean(known) if known else None

    return read


_LAYER_CHARTS: tuple[tuple[str, str, str, _OfLayer], ...] = (
    ("sink", "sink share", "of |A| on the first token, mean over heads", _mean("sink_share")),
    ("entropy", "entropy of |A| (1 is uniform)", "mean over heads", _mean("entropy")),
    ("negative", "negative mass", "of the signed map, mean over heads", _mean("negative_mass")),
    ("cancelled", "share of A1 cancelled", "by λA2, mean over heads", _mean("cancelled")),
    ("correlation", "correlation of A1 and A2", _AROUND, _mean("correlation")),
    ("context", "Context RMS", "before head norm, mean over heads", _mean("context_rms")),
    ("maps", "correlation of heads' maps", _PAIRS, map_correlation),
    ("cka", "CKA of heads' features", "unbiased, mean over pairs of heads", itemgetter("cka")),
)
"""Key, title, explanation, and a function that reads the value from a layer's record."""


def _colors(result: AnalysisResult) -> dict[str, str]:
    return model_colors({label_of(a): str(a.model.get("attention_type")) for a in result.models})


def layer_charts(result: AnalysisResult) -> list[Chart]:
    """Draw each quantity over the layers, one line per model that has it."""
    layers = {label_of(analysis): analysis.attention for analysis in result.models}
    return [
        chart
        for key, title, words, read in _LAYER_CHARTS
        for chart in _layer_chart(result, f"layer-{key}", title, f"{title}: {words}.", layers, read)
    ]


def outlier_charts(result: AnalysisResult) -> list[Chart]:
    """Draw the largest logit and hidden state of every layer."""
    layers = {label_of(x): x.outliers["layers"] if x.outliers else () for x in result.models}
    charts: list[Chart] = []
    for key, kind in (("logit", LOGITS), ("hidden", HIDDEN)):
        title = f"largest of {kind}"

        def read(layer: Any, kind: str = kind) -> float | None:
            return layer.get(kind, {}).get(ALL_POSITIONS, {}).get("largest")

        caption = f"{title}, all positions."
        charts += _layer_chart(result, f"outlier-{key}", title, caption, layers, read)
    return charts


def _layer_chart(
    result: AnalysisResult,
    element_id: str,
    title: str,
    caption: str,
    layers: Mapping[str, Sequence[Any]],
    read: _OfLayer,
) -> list[Chart]:
    """Draw one quantity over the layers; empty if no model has it. ``layers``: by model."""
    colors, traces = _colors(result), []
    for label, records in layers.items():
        values = [(float(i), read(layer)) for i, layer in enumerate(records)]
        if curve := [(i, value) for i, value in values if value is not None]:
            traces.append(point_line(curve, label, color=colors[label], where="layer %{x}"))
    look = layout("layer", title, xaxis={"dtick": 1})
    return [_chart(element_id, traces, look, caption, title)] if traces else []


def _chart(
    element_id: str, traces: list[dict[str, Any]], look: dict[str, Any], caption: str, label: str
) -> Chart:
    return Chart(
        element_id=element_id, traces=traces, look=look, caption=caption, height=320, label=label
    )


def distance_charts(result: AnalysisResult) -> list[Chart]:
    """Draw the mass of attention by distance, and the share that the second map cancels."""
    begins = result.settings["distances"]
    ranges = [str(a) if a == b - 1 else f"{a}–{b - 1}" for a, b in pairwise(begins)]
    names = ["first", *ranges, f"{begins[-1]}+"]
    masses = {label_of(a): _by_distance(a, ("absolute", "map_1")) for a in result.models}
    shares = {label_of(a): _by_distance(a, ("cancelled_share",)) for a in result.models}
    uniform = next((a.uniform for a in result.models if a.uniform), None)
    if uniform is not None:
        masses[_UNIFORM] = [uniform["first"], *uniform["by_distance"]]
        # Ranges beyond the longest window hold nothing.
        last = max((i for i, mass in enumerate(masses[_UNIFORM]) if mass), default=0)
        names = names[: last + 1]
    colors = _colors(result) | {_UNIFORM: "#777777"}
    charts = []
    for key, title, curves, caption in (
        ("mass", "mass of |A|", masses, "Mean over layers and heads. All distances sum to a row."),
        ("cancelled", "share of A1 cancelled", shares, "Of A1 there, by λA2, mean over layers."),
    ):
        traces = [
            point_line(
                list(zip(names, values, strict=False)),
                label,
                color=colors[label],
                dash="dot" if label == _UNIFORM else "solid",
            )
            for label, values in curves.items()
            if values
        ]
        axis = {"type": "category"}  # else plotly takes "1" for a number and drops "first"
        look = layout("distance in tokens; first: the first token", title, xaxis=axis)
        label = f"{title} by distance"
        if traces:
            charts.append(_chart(f"distance-{key}", traces, look, f"{label}. {caption}", label))
    return charts


def head_maps(analysis: ModelAnalysis, index: int) -> list[Chart]:
    """Draw heat maps of one model: layers by heads. ``index``: the model's number on the page."""
    label = label_of(analysis)
    charts = []
    for name, title in (
        ("sink_share", "sink share"),
        ("entropy", "entropy of |A|"),
        ("cancelled", "share of A1 cancelled"),
    ):
        known = [row for layer in analysis.attention if (row := layer["heads"].get(name))]
        if not known or len(known) < len(analysis.attention):
            continue
        hover = ["layer %{y}, head %{x}", "%{z:.4f}"]
        trace = heat_map(known, range(len(known[0])), range(len(known)), hover=hover)
        trace |= {"colorbar": {"thickness": 8, "tickfont": {"size": 10}}}
        charts.append(
            Chart(
                element_id=f"heads-{index}-{name}",
                traces=[trace],
                look=map_layout("head", "layer"),
                height=120 + 26 * min(len(known), 30),
                caption=f"{label}: {title}.",
                label=f"{title} of every head of {label}",
            )
        )
    return charts


def lambda_charts(result: AnalysisResult) -> list[Chart]:
    """Draw λ on the text by layer with its range, and over training, beside λ_init."""
    colors = _colors(result)
    traces: list[dict[str, Any]] = []
    for analysis in result.models:
        if analysis.lambdas is None:
            continue
        label, layers = label_of(analysis), analysis.lambdas["layers"]
        color, where = colors[label], "layer %{x}"
        points = [(layer["lam"], min(layer["min"]), max(layer["max"])) for layer in layers]
        curve = [(place, point[0]) for place, point in enumerate(points)]
        trace = point_line(curve, label, color=color, where=f"λ, {where}")
        traces.append(trace | {"legendgroup": label, "error_y": interval_bars(points)})
        start = list(enumerate(analysis.lambdas["lambda_init"] or ()))
        if start:
            traces.append(line(start, label, "λ_init", color=color, dotted=True, where=where))
    caption = (
        "λ by layer: mean over tokens and heads, bars from the smallest to the largest. Dotted: "
        "λ_init."
    )
    by_layer = _chart("lambda-layers", traces, layout("layer", "λ"), caption, "λ by layer")
    trajectories = [
        _trajectory(label_of(analysis), analysis.lambda_log, f"lambda-log-{index}")
        for index, analysis in enumerate(result.models)
        if analysis.lambda_log is not None
    ]
    return [by_layer, *trajectories] if traces else trajectories


def _trajectory(label: str, log: Any, element_id: str) -> Chart:
    steps, num_layers = log["steps"], len(log["values"][0])
    shown = range(0, num_layers, -(-num_layers // 12))  # twelve of many layers
    traces = []
    for place, layer in enumerate(shown):
        color, name = _LAYER_COLORS[place % len(_LAYER_COLORS)], f"layer {layer}"
        curve = [(step, row[layer]) for step, row in zip(steps, log["values"], strict=True)]
        traces.append(line(curve, name, "λ", color=color))
        if log["lambda_init"] is not None:
            start = log["lambda_init"][layer]
            flat = [(steps[0], start), (steps[-1], start)]
            traces.append(line(flat, name, "λ_init", color=color, dotted=True))
    some = "" if len(shown) == num_layers else f" {len(shown)} of {num_layers} layers are shown."
    return Chart(
        element_id=element_id,
        traces=traces,
        look=layout("step", "λ"),
        caption=f"{label}: λ over training, from the log of the run (of V2 the mean over tokens "
        f"and heads). Dotted: λ_init.{some}",
        height=320,
        label=f"λ of {label} over training",
        runs=f"Run: {log['run']}.",
    )


def _by_distance(analysis: ModelAnalysis, kinds: Sequence[str]) -> list[float | None]:
    """Mean over layers, for the first of ``kinds`` that is recorded; first token, then ranges."""
    for kind in kinds:
        layers = [
            layer["by_distance"][kind]
            for layer in analysis.attention
            if kind in layer["by_distance"]
        ]
        if layers:
            columns = zip(*([layer["first"], *layer["ranges"]] for layer in layers), strict=True)
            known = [[x for x in column if x is not None] for column in columns]
            return [fmean(column) if column else None for column in known]
    return []
