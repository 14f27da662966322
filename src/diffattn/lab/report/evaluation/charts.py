"""Charts of one protocol: lines over one number, or heat maps over two numbers."""

from collections.abc import Mapping, Sequence

from diffattn.lab.records.evaluations import EvalResult, Metric
from diffattn.lab.report.page.charts import (
    SEQUENTIAL,
    Chart,
    interval_bars,
    layout,
    line,
    model_colors,
)
from diffattn.lab.report.page.wording import is_number, label_of, number

_ByModel = Mapping[str, Sequence[Metric]]
"""Label of a model -> its values of one metric, which differ only in numbers such as a length."""


def charts_of(results: Sequence[EvalResult], prefix: str) -> list[list[Chart]]:
    """Draw metrics over one number of three values or more; then each over two numbers as maps."""
    colors = model_colors({label_of(x): str(x.model.get("attention_type")) for x in results})
    groups: dict[tuple[str, ...], dict[str, list[Metric]]] = {}
    for result in results:
        for metric in filter(lambda metric: metric.where, result.metrics):
            places = (k if is_number(v) else f"{k}={v}" for k, v in metric.where.items())
            by_model = groups.setdefault((metric.name, *places), {})
            by_model.setdefault(label_of(result), []).append(metric)
    lines, maps = [], []
    for index, by_model in enumerate(groups.values()):
        every = [metric for metrics in by_model.values() for metric in metrics]
        where = every[0].where
        words = [f"{key} {value}" for key, value in where.items() if not is_number(value)]
        title, element_id = ", ".join([every[0].name, *words]), f"{prefix}{index}"
        numbers = [key for key, value in where.items() if is_number(value)]
        axes = [key for key in numbers if len({metric.where[key] for metric in every}) > 1]
        if len(axes) == 2:
            maps.append(_maps(element_id, title, axes, by_model))
        elif len(axes) == 1 and len({metric.where[axes[0]] for metric in every}) > 2:
            lines.append(_line_chart(element_id, title, axes[0], by_model, colors))
    return [lines, *maps]


def _line_chart(
    element_id: str, title: str, axis: str, by_model: _ByModel, colors: Mapping[str, str]
) -> Chart:
    traces, every = [], [metric for metrics in by_model.values() for metric in metrics]
    for label, metrics in by_model.items():
        ordered = sorted(metrics, key=lambda metric: metric.where[axis])
        points = [(metric.where[axis], metric.value) for metric in ordered]
        bars = interval_bars((m.value, m.low, m.high) for m in ordered)
        trace = line(points, label, color=colors[label], where=f"{axis} %{{x}}")
        traces.append(trace | {"error_y": bars})
    places = [metric.where[axis] for metric in every]
    is_wide = min(places) > 0 and max(places) / min(places) >= 16
    methods = dict.fromkeys(f"{m.method}, {100 * m.level:g} %" for m in every if m.low is not None)
    bars_text = f"Bars: intervals by {'; '.join(methods)}." if methods else "No intervals."
    x_axis = {"type": "log" if is_wide else "linear"}
    return Chart(
        element_id=element_id,
        traces=traces,
        look=layout(axis, f"{every[0].name}, {every[0].unit}", xaxis=x_axis),
        caption=f"{title} over {axis}. {bars_text}",
    )


def _maps(element_id: str, title: str, axes: Sequence[str], by_model: _ByModel) -> list[Chart]:
    """One map per model; the first row is on top."""
    across, down = axes
    every = [metric for metrics in by_model.values() for metric in metrics]
    limits = 0.0, 1.0
    if every[0].unit != "share":
        limits = min(metric.value for metric in every), max(metric.value for metric in every)
    charts = []
    for index, (label, metrics) in enumerate(by_model.items()):
        columns = sorted({metric.where[across] for metric in metrics})
        rows = sorted({metric.where[down] for metric in metrics})
        cells = {(metric.where[across], metric.where[down]): metric.value for metric in metrics}
        values = [[cells.get((x, y)) for x in columns] for y in rows]
        trace = {
            "type": "heatmap",
            "z": values,
            "x": list(map(str, columns)),
            "y": list(map(str, rows)),
            "colorscale": SEQUENTIAL,
            "hovertemplate": [f"{across} %{{x}}, {down} %{{y}}: %{{z:.4f}}"],
            "text": [["" if v is None else number(v, 2) for v in row] for row in values],
            "texttemplate": "%{text}",
            "zmin": limits[0],
            "zmax": limits[1],
            "showscale": False,
        }
        names = {"type": "category"}  # all rows and columns are named
        charts.append(
            Chart(
                element_id=f"{element_id}-{index}",
                traces=[trace],
                look=layout(across, down, xaxis=names, yaxis=names | {"autorange": "reversed"}),
                caption=f"{label}: {title}.",
                height=140 + 34 * len(rows),
            )
        )
    return charts
