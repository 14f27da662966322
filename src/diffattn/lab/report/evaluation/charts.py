"""Charts of one protocol: lines over one number, or heat maps over two numbers."""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from diffattn.lab.records.evaluations import EvalResult, Metric
from diffattn.lab.report.evaluation.tables import label_of
from diffattn.lab.report.page.charts import (
    Chart,
    heat_map,
    interval_bars,
    layout,
    map_layout,
    model_colors,
    point_line,
)
from diffattn.lab.report.page.wording import is_number, number


class _Facet(NamedTuple):
    """The values of one metric whose ``where`` differs only in numbers, such as a length."""

    element_id: str
    title: str
    """Name of the metric, and the words that all its values share in ``where``."""
    unit: str
    axes: dict[str, list[float]]
    """Name of a number in ``where`` that varies -> its values in order."""
    metrics: dict[str, list[Metric]]
    """Label of a model -> its values of the metric."""
    every: list[Metric]


def charts_of(results: Sequence[EvalResult], prefix: str) -> list[list[Chart]]:
    """Draw metrics over one number of three values or more; then each over two numbers as maps."""
    kinds = {label_of(result): str(result.model.get("attention_type")) for result in results}
    colors, facets = model_colors(kinds), _facets(results, prefix)
    over_one = [facet for facet in facets if len(facet.axes) == 1]
    lines = [_line_chart(x, colors) for x in over_one if min(map(len, x.axes.values())) > 2]
    return [lines, *(_maps(facet) for facet in facets if len(facet.axes) == 2)]


def _facets(results: Sequence[EvalResult], prefix: str) -> list[_Facet]:
    groups: dict[tuple[str, ...], dict[str, list[Metric]]] = {}
    for result in results:
        for metric in filter(lambda metric: metric.where, result.metrics):
            places = (k if is_number(v) else f"{k}={v}" for k, v in metric.where.items())
            by_model = groups.setdefault(
                (metric.name, *places), {label_of(result): [] for result in results}
            )
            by_model[label_of(result)].append(metric)
    facets = []
    for index, metrics in enumerate(groups.values()):
        first = next(values[0] for values in metrics.values() if values)
        words = [f"{key} {value}" for key, value in first.where.items() if not is_number(value)]
        every = [metric for values in metrics.values() for metric in values]
        values_of = {
            key: sorted({metric.where[key] for metric in every})
            for key, value in first.where.items()
            if is_number(value)
        }
        axes = {key: values for key, values in values_of.items() if len(values) > 1}
        title = ", ".join([first.name, *words])
        facets.append(_Facet(f"{prefix}{index}", title, first.unit, axes, metrics, every))
    return facets


def _line_chart(facet: _Facet, colors: Mapping[str, str]) -> Chart:
    ((axis, places),) = facet.axes.items()
    traces = []
    for label, metrics in facet.metrics.items():
        ordered = sorted(metrics, key=lambda metric: metric.where[axis])
        points = [(metric.where[axis], metric.value) for metric in ordered]
        bars = interval_bars((m.value, m.low, m.high) for m in ordered)
        trace = point_line(points, label, color=colors[label], where=f"{axis} %{{x}}")
        traces.append(trace | {"error_y": bars})
    is_wide = places[0] > 0 and places[-1] / places[0] >= 16
    with_ends = (metric for metric in facet.every if metric.low is not None)
    methods = dict.fromkeys(f"{m.method}, {100 * m.level:g} %" for m in with_ends)
    bars_text = f"Bars: intervals by {'; '.join(methods)}." if methods else "No intervals."
    x_axis = {"type": "log" if is_wide else "linear"}
    return Chart(
        element_id=facet.element_id,
        traces=traces,
        look=layout(axis, f"{facet.every[0].name}, {facet.unit}", xaxis=x_axis),
        caption=f"{facet.title} over {axis}. {bars_text}",
    )


def _maps(facet: _Facet) -> list[Chart]:
    across, down = facet.axes
    every = [metric.value for metric in facet.every]
    is_share = facet.unit == "share"
    charts = []
    for index, (label, metrics) in enumerate(facet.metrics.items()):
        columns = sorted({metric.where[across] for metric in metrics})
        rows = sorted({metric.where[down] for metric in metrics})
        cells = {(metric.where[across], metric.where[down]): metric.value for metric in metrics}
        values = [[cells.get((x, y)) for x in columns] for y in rows]
        trace = heat_map(
            values, columns, rows, hover=[f"{across} %{{x}}, {down} %{{y}}: %{{z:.4f}}"]
        )
        trace |= {
            "text": [["" if v is None else number(v, 2) for v in row] for row in values],
            "texttemplate": "%{text}",
            "zmin": 0 if is_share else min(every),
            "zmax": 1 if is_share else max(every),
            "showscale": False,
        }
        charts.append(
            Chart(
                element_id=f"{facet.element_id}-{index}",
                traces=[trace],
                look=map_layout(across, down),
                caption=f"{label}: {facet.title}.",
                height=140 + 34 * len(rows),
            )
        )
    return charts
