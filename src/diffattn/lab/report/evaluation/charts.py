"""Charts of one protocol: a line over one number, a heat map over two, per model."""

from collections.abc import Mapping, Sequence
from typing import Any

from diffattn.lab.records.evaluations import EvalResult, Metric
from diffattn.lab.report.page.charts import SEQUENTIAL, Chart, interval_bars, layout, model_colors
from diffattn.lab.report.page.runs import is_number
from diffattn.lab.report.page.wording import number

Facet = tuple[str, tuple[tuple[str, str], ...], tuple[str, ...]]
"""Name of the metric, what is fixed, and which numbers vary."""
ByModel = Mapping[str, Sequence[Metric]]
"""The metrics of one facet by the label of their model."""


def line_charts(results: Sequence[EvalResult], prefix: str) -> tuple[Chart, ...]:
    """A line per model with its interval, over a number (a length, a count) of 3 values or more.

    Args:
        results: One per model, of one variant.
        prefix: Start of the element ids, unique in the page.
    """
    kinds = {str(r.model["label"]): str(r.model.get("attention_type")) for r in results}
    colors = model_colors(kinds)
    return tuple(
        _lines(metrics, facet, dims[0], element_id, colors)
        for element_id, facet, metrics, dims in _facets(results, prefix)
        if len(dims) == 1 and _num_values(metrics, dims[0]) > 2
    )


def heat_maps(results: Sequence[EvalResult], prefix: str) -> tuple[tuple[Chart, ...], ...]:
    """A heat map per model, for every metric over two varying numbers."""
    return tuple(
        tuple(_heat_maps(metrics, facet, dims, element_id))
        for element_id, facet, metrics, dims in _facets(results, prefix)
        if len(dims) == 2
    )


def _facets(
    results: Sequence[EvalResult], prefix: str
) -> list[tuple[str, Facet, ByModel, list[str]]]:
    """Every facet with its element id, its metrics by model, and the numbers that vary in it."""
    facets = list(dict.fromkeys(_facet(m) for r in results for m in r.metrics if m.where))
    rows = []
    for index, facet in enumerate(facets):
        metrics: ByModel = {
            str(r.model["label"]): [m for m in r.metrics if m.where and _facet(m) == facet]
            for r in results
        }
        dims = [d for d in facet[2] if _num_values(metrics, d) > 1]
        rows.append((f"{prefix}{index}", facet, metrics, dims))
    return rows


def _facet(metric: Metric) -> Facet:
    numbers = tuple(key for key, value in metric.where.items() if is_number(value))
    fixed = tuple((key, str(v)) for key, v in metric.where.items() if not is_number(v))
    return metric.name, fixed, numbers


def _num_values(by_model: ByModel, key: str) -> int:
    return len({m.where[key] for metrics in by_model.values() for m in metrics})


def _title(facet: Facet) -> str:
    return ", ".join([facet[0], *(f"{key} {value}" for key, value in facet[1])])


def _bars(by_model: ByModel) -> str:
    """What the bars of a chart are; a point without interval has none."""
    methods = dict.fromkeys(
        f"{m.method}, {100 * m.level:g} %"
        for metrics in by_model.values()
        for m in metrics
        if m.low is not None
    )
    return f"Bars: intervals by {'; '.join(methods)}." if methods else "No intervals."


def _lines(
    by_model: ByModel, facet: Facet, key: str, element_id: str, colors: Mapping[str, str]
) -> Chart:
    traces: list[dict[str, Any]] = []
    for label, metrics in by_model.items():
        ordered = sorted(metrics, key=lambda m: m.where[key])
        bars = interval_bars((m.value, m.low, m.high) for m in ordered)
        traces.append(
            {
                "type": "scatter",
                "mode": "lines+markers",
                "name": label,
                "line": {"color": colors[label], "width": 2},
                "x": [m.where[key] for m in ordered],
                "y": [m.value for m in ordered],
                "error_y": bars | {"thickness": 1, "width": 3},
                "hovertemplate": [label, f"{key} %{{x}}: %{{y:.4f}}"],
            }
        )
    positive = [x for trace in traces for x in trace["x"]]
    wide = min(positive) > 0 and max(positive) / min(positive) >= 16
    first = next(m for metrics in by_model.values() for m in metrics)
    x_axis = {"type": "log" if wide else "linear"}
    return Chart(
        element_id=element_id,
        traces=traces,
        look=layout(key, f"{facet[0]}, {first.unit}", xaxis=x_axis),
        caption=f"{_title(facet)} over {key}. {_bars(by_model)}",
        height=340,
        label=f"{_title(facet)} over {key}, one line per model; the table gives the numbers",
    )


def _heat_maps(
    by_model: ByModel, facet: Facet, dims: Sequence[str], element_id: str
) -> list[Chart]:
    across, down = dims
    charts = []
    every = [m.value for metrics in by_model.values() for m in metrics]
    share = next(m for metrics in by_model.values() for m in metrics).unit == "share"
    for index, (label, metrics) in enumerate(by_model.items()):
        xs = sorted({m.where[across] for m in metrics})
        ys = sorted({m.where[down] for m in metrics})
        cells = {(m.where[across], m.where[down]): m.value for m in metrics}
        values = [[cells.get((x, y)) for x in xs] for y in ys]
        trace = {
            "type": "heatmap",
            "x": [str(x) for x in xs],
            "y": [str(y) for y in ys],
            "z": values,
            "text": [["" if v is None else number(v, 2) for v in row] for row in values],
            "texttemplate": "%{text}",
            "zmin": 0 if share else min(every),
            "zmax": 1 if share else max(every),
            "colorscale": SEQUENTIAL,
            "showscale": False,
            "hovertemplate": [f"{across} %{{x}}, {down} %{{y}}: %{{z:.4f}}"],
        }
        category = {"type": "category"}
        y_axis = {**category, "autorange": "reversed"}
        charts.append(
            Chart(
                element_id=f"{element_id}-{index}",
                traces=[trace],
                look=layout(across, down, xaxis=category, yaxis=y_axis),
                caption=f"{label}: {_title(facet)}.",
                height=140 + 34 * len(ys),
                label=f"{_title(facet)} of {label} over {across} and {down}",
            )
        )
    return charts
