"""Charts of an analysis: by layer, by head, by distance, and λ."""

from collections.abc import Callable, Sequence
from statistics import fmean
from typing import Any

from diffattn.lab.records.analysis import AnalysisResult, ModelAnalysis
from diffattn.lab.report.analysis.tables import (
    HIDDEN,
    LOGITS,
    WITH,
    acting,
    label_of,
    layer_means,
    layer_values,
)
from diffattn.lab.report.page.charts import (
    PALETTE,
    SEQUENTIAL,
    Chart,
    interval_bars,
    layout,
    line,
    model_colors,
)

_LAYER_COLORS = (*PALETTE, "#4d4d4d")
_HEIGHT = 320
_UNIFORM = "uniform map"
_GREY = "#777777"
_MANY_LAYERS = 12

ByLayer = Callable[[ModelAnalysis], list[tuple[float, float]]]
_BY_LAYER: tuple[tuple[str, str, str, ByLayer], ...] = (
    ("sink", "sink share", "of |A| on the first token, mean over heads",
     lambda a: layer_means(a, "sink_share")),
    ("entropy", "entropy of |A| (1 is uniform)", "normalised, mean over heads",
     lambda a: layer_means(a, "entropy")),
    ("negative", "negative mass", "of the signed map, mean over heads",
     lambda a: layer_means(a, "negative_mass")),
    ("cancelled", "share of A1 cancelled", "by λA2, mean over heads",
     lambda a: layer_means(a, "cancelled")),
    ("correlation", "correlation of A1 and A2", "around their row means, mean over heads",
     lambda a: layer_means(a, "correlation")),
    ("context", "Context RMS", "before head norm, mean over heads",
     lambda a: layer_means(a, "context_rms")),
    ("maps", "correlation of heads' maps", "signed maps, mean over pairs of heads",
     lambda a: layer_values(a, lambda layer: acting(layer, "map_correlation"))),
    ("cka", "CKA of heads' features", "unbiased, mean over pairs of heads",
     lambda a: layer_values(a, lambda layer: layer["cka"])),
)  # fmt: skip


def _colors(result: AnalysisResult) -> dict[str, str]:
    return model_colors({label_of(a): str(a.model.get("attention_type")) for a in result.models})


def layer_charts(result: AnalysisResult) -> list[Chart]:
    """A line per model over the layers, for every quantity that some model has."""
    colors = _colors(result)
    charts = []
    for key, title, caption, read in _BY_LAYER:
        curves = {label_of(a): read(a) for a in result.models}
        chart = _lines(f"layer-{key}", curves, title, f"{title}: {caption}.", colors)
        charts += [chart] if chart else []
    return charts


def outlier_charts(result: AnalysisResult) -> list[Chart]:
    """The largest logit and hidden state of every layer."""
    colors = _colors(result)
    charts = []
    for key, kind in (("logit", LOGITS), ("hidden", HIDDEN)):
        curves = {
            label_of(a): [
                (float(i), row[kind][WITH]["largest"])
                for i, row in enumerate(a.outliers["layers"] if a.outliers else [])
                if WITH in row.get(kind, {})
            ]
            for a in result.models
        }
        title = f"largest of {kind}"
        chart = _lines(f"outlier-{key}", curves, title, f"{title}, all positions.", colors)
        charts += [chart] if chart else []
    return charts


def distance_charts(result: AnalysisResult) -> list[Chart]:
    """Where attention goes by distance, and where the second map cancels."""
    begins = result.settings["distances"]
    names = ["first", *_range_names(begins)]
    colors = _colors(result)
    kinds = {label_of(a): _by_distance(a, ("absolute", "map_1")) for a in result.models}
    uniform = next((a.uniform for a in result.models if a.uniform), None)
    shown = len(names)
    if uniform is not None:
        kinds[_UNIFORM] = [uniform["first"], *uniform["by_distance"]]
        # Ranges beyond the longest window hold nothing.
        shown = 1 + max((i for i, mass in enumerate(kinds[_UNIFORM]) if mass), default=0)
    names = names[:shown]
    shares = {label_of(a): _by_distance(a, ("cancelled_share",)) for a in result.models}
    charts = []
    for key, title, of, caption in (
        ("mass", "mass of |A|", kinds, "Mean over layers and heads; the sum is the row's."),
        ("cancelled", "share of A1 cancelled", shares,
         "What of A1's mass at that distance λA2 takes away, mean over layers."),
    ):  # fmt: skip
        traces = [
            {
                "type": "scatter", "mode": "lines+markers", "name": label, "x": names,
                "y": values[:shown],
                "line": {"color": colors.get(label, _GREY), "width": 2,
                         "dash": "dot" if label == _UNIFORM else "solid"},
                "hovertemplate": [label, "%{x}: %{y:.4f}"],
            }
            for label, values in of.items()
            if values
        ]  # fmt: skip
        if traces:
            look = layout("distance in tokens; first: the first token", title)
            charts.append(
                Chart(
                    element_id=f"distance-{key}", traces=traces, look=look, height=_HEIGHT,
                    caption=f"{title} by distance. {caption}", label=f"{title} by distance",
                )
            )  # fmt: skip
    return charts


def head_maps(analysis: ModelAnalysis, index: int) -> list[Chart]:
    """Layers by heads, of one model."""
    label = label_of(analysis)
    charts = []
    for name, title in (
        ("sink_share", "sink share"), ("entropy", "entropy of |A|"),
        ("cancelled", "share of A1 cancelled"),
    ):  # fmt: skip
        rows = [layer["heads"].get(name) for layer in analysis.attention]
        if not rows or not all(rows):
            continue
        heads = [str(head) for head in range(len(rows[0] or []))]
        trace = {
            "type": "heatmap", "z": rows, "x": heads,
            "y": [str(layer) for layer in range(len(rows))], "colorscale": SEQUENTIAL,
            "hovertemplate": ["layer %{y}, head %{x}", "%{z:.4f}"],
            "colorbar": {"thickness": 8, "tickfont": {"size": 10}},
        }  # fmt: skip
        look = layout(
            "head", "layer", xaxis={"type": "category"},
            yaxis={"type": "category", "autorange": "reversed"},
        )  # fmt: skip
        charts.append(
            Chart(
                element_id=f"heads-{index}-{name}", traces=[trace], look=look,
                height=120 + 26 * min(len(rows), 30), caption=f"{label}: {title}.",
                label=f"{title} of every head of {label}",
            )
        )  # fmt: skip
    return charts


def lambda_charts(result: AnalysisResult) -> list[Chart]:
    """λ on the text by layer with its range, and over training, against λ_init."""
    colors = _colors(result)
    traces: list[dict[str, Any]] = []
    for analysis in result.models:
        if analysis.lambdas is None:
            continue
        label, layers = label_of(analysis), analysis.lambdas["layers"]
        points = [(x["lam"], min(x["min"]), max(x["max"])) for x in layers]
        curve = [(float(i), point[0]) for i, point in enumerate(points)]
        trace = line(curve, label, "λ", color=colors[label], where="layer %{x}")
        traces.append(
            trace | {"mode": "lines+markers", "name": label, "error_y": interval_bars(points)}
        )
        traces += _initial(analysis.lambdas["lambda_init"], label, colors[label])
    charts = []
    if traces:
        caption = (
            "λ by layer: mean over tokens and heads, bars from the smallest to the largest. "
            "Dotted: λ_init."
        )
        charts.append(
            Chart(
                element_id="lambda-layers", traces=traces, look=layout("layer", "λ"),
                caption=caption, height=_HEIGHT, label="λ by layer",
            )
        )  # fmt: skip
    for index, analysis in enumerate(result.models):
        if analysis.lambda_log is not None:
            charts.append(_trajectory(analysis, index))
    return charts


def _trajectory(analysis: ModelAnalysis, index: int) -> Chart:
    log = analysis.lambda_log
    assert log is not None
    num_layers = len(log["values"][0])
    shown = range(num_layers)
    if num_layers > _MANY_LAYERS:
        shown = range(0, num_layers, -(-num_layers // _MANY_LAYERS))
    traces = []
    for place, layer in enumerate(shown):
        color = _LAYER_COLORS[place % len(_LAYER_COLORS)]
        curve = [(step, row[layer]) for step, row in zip(log["steps"], log["values"], strict=True)]
        traces.append(line(curve, f"layer {layer}", "λ", color=color))
        if log["lambda_init"] is not None:
            ends = [(log["steps"][0], log["lambda_init"][layer])]
            ends.append((log["steps"][-1], log["lambda_init"][layer]))
            traces.append(line(ends, f"layer {layer}", "λ_init", color=color, dotted=True))
    some = "" if len(shown) == num_layers else f" {len(shown)} of {num_layers} layers are shown."
    return Chart(
        element_id=f"lambda-log-{index}", traces=traces, look=layout("step", "λ"),
        caption=f"{label_of(analysis)}: λ over training, as its log holds it (of V2 the mean over "
        f"tokens and heads). Dotted: λ_init.{some}",
        height=_HEIGHT, label=f"λ of {label_of(analysis)} over training",
        runs=f"Run: {log['run']}.",
    )  # fmt: skip


def _initial(values: Sequence[float] | None, label: str, color: str) -> list[dict[str, Any]]:
    if values is None:
        return []
    curve = [(float(i), value) for i, value in enumerate(values)]
    return [line(curve, label, "λ_init", color=color, dotted=True, where="layer %{x}")]


def _lines(
    element_id: str,
    curves: dict[str, list[tuple[float, float]]],
    title: str,
    caption: str,
    colors: dict[str, str],
) -> Chart | None:
    traces = [
        line(curve, label, title, color=colors[label], where="layer %{x}")
        | {"mode": "lines+markers", "name": label}
        for label, curve in curves.items()
        if curve
    ]
    if not traces:
        return None
    return Chart(
        element_id=element_id, traces=traces, look=layout("layer", title, xaxis={"dtick": 1}),
        caption=caption, height=_HEIGHT, label=title,
    )  # fmt: skip


def _by_distance(analysis: ModelAnalysis, kinds: Sequence[str]) -> list[float | None]:
    """The first of ``kinds`` that the model has: its mean over layers, the first key first."""
    for kind in kinds:
        layers = [layer["by_distance"][kind] for layer in analysis.attention
                  if kind in layer["by_distance"]]  # fmt: skip
        if layers:
            columns = zip(*([of["first"], *of["ranges"]] for of in layers), strict=True)
            known = [[x for x in column if x is not None] for column in columns]
            return [fmean(column) if column else None for column in known]
    return []


def _range_names(begins: Sequence[int]) -> list[str]:
    ends = [*(begin - 1 for begin in begins[1:]), None]
    names = []
    for begin, end in zip(begins, ends, strict=True):
        one = str(begin) if begin == end else f"{begin}–{end}"
        names.append(f"{begin}+" if end is None else one)
    return names
