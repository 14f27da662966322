"""Charts of what the first paper plots, from its printed points."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from diffattn.lab.report.page.charts import SEQUENTIAL, Chart, layout, line
from diffattn.lab.report.page.wording import type_name
from diffattn.lab.report.paper import (
    PublishedTable,
    many_shot_curves,
    published_tables,
    scaling_curves,
)

_DATA_SETS = {
    "trec": "TREC", "trec_fine": "TREC-fine", "banking77": "Banking-77", "clinic150": "Clinic-150",
}  # fmt: skip
_SEGMENT_COLORS = ("#999999", "#56b4e9", "#d55e00", "#0072b2", "#e69f00")
_TYPES = ("softmax", "diff")
"""The rows of a table, Transformer and DIFF, by the names that give colours."""


def published_charts(section: str) -> list[Chart]:
    """Charts of a section's published figures; empty where it has none."""
    if section in ("size", "tokens"):
        return [_scaling("parameters" if section == "size" else "tokens")]
    if section == "needles":
        return [_heat_map(f"needles_64k_{model}", model) for model in ("transformer", "diff")]
    if section == "attention":
        return [_segments()]
    if section == "many-shot":
        return [_many_shot(name) for name in _DATA_SETS]
    if section == "quantised":
        return [_lines("quantised", "bits", "accuracy, %", reverse=True)]
    if section == "mathematics":
        return [_lines("math_tokens", "billion tokens", "mean accuracy, %")]
    return []


def _scaling(axis: str) -> Chart:
    curves = scaling_curves()[axis]
    grid = np.geomspace(min(curves.x), max(curves.x), 60)
    traces = []
    for name in _TYPES:
        a, b, c = curves.curves[name]
        fit = [(float(x), float(a * x**-b + c)) for x in grid]
        traces.append(line(fit, name, "published fit", where="%{x:.2f}") | {"mode": "lines"})
        points = list(zip(curves.x, curves.losses[name], strict=True))
        traces.append(
            line(points, name, "published", where="%{x}") | {"mode": "markers", "showlegend": False}
        )
    return Chart(
        element_id=f"published-{axis}", traces=traces, height=400,
        look=layout(curves.unit, "loss, nats per token", xaxis={"type": "log"}),
        caption=f"Published: loss over {axis}. arXiv:2410.05258v2, Fig. 3.",
        label=f"Published losses over {axis}, points and fitted curve per model",
    )  # fmt: skip


def _heat_map(table: str, model: str) -> Chart:
    of = published_tables()[table]
    values = [row[1:] for row in of.rows]
    trace = {
        "type": "heatmap", "z": values, "x": [f"{x}K" for x in of.columns[1:]],
        "y": [row[0] for row in of.rows], "zmin": 0, "zmax": 1, "colorscale": SEQUENTIAL,
        "texttemplate": "%{z:.2f}", "hovertemplate": ["%{x}, depth %{y}: %{z:.2f}"],
        "showscale": False,
    }  # fmt: skip
    return Chart(
        element_id=f"published-needles-{model}", traces=[trace], height=300,
        look=layout("tokens", "depth", yaxis={"autorange": "reversed"}),
        caption=f"Published, {of.caption} {of.source}.",
        label=f"Heat map of needles found by depth and length, {model}",
    )  # fmt: skip


def _segments() -> Chart:
    of = published_tables()["segments"]
    models = [row[0] for row in of.rows]
    traces: list[dict[str, Any]] = [
        {
            "type": "bar", "orientation": "h", "name": segment, "y": models,
            "x": [row[i] for row in of.rows], "marker": {"color": color},
            "hovertemplate": [f"{segment}: %{{x:.2f}}"],
        }
        for i, (segment, color) in enumerate(zip(of.columns[1:], _SEGMENT_COLORS, strict=True), 1)
    ]  # fmt: skip
    return Chart(
        element_id="published-segments",
        traces=traces,
        height=260,
        look=layout("share of attention", "", barmode="stack"),
        caption=f"Published. {of.caption} {of.source}.",
        label="Share of attention on the parts of a prompt, one bar per model",
    )


def _many_shot(name: str) -> Chart:
    curve = many_shot_curves()[name]
    by_type = zip(_TYPES, (curve.transformer, curve.diff), strict=True)
    return Chart(
        element_id=f"published-many-shot-{name}", height=300,
        traces=[
            line(list(zip(curve.shots, values, strict=True)), kind, "published",
                 where="%{x} examples") | {"mode": "lines"}
            for kind, values in by_type
        ],
        look=layout("examples", "accuracy, %"),
        caption=f"Published: {_DATA_SETS[name]}. arXiv:2410.05258v2, Fig. 6.",
        label=f"Published accuracy over the number of examples, {_DATA_SETS[name]}",
    )  # fmt: skip


def _lines(table: str, x_title: str, y_title: str, *, reverse: bool = False) -> Chart:
    of = published_tables()[table]
    x = [float(column.split()[0]) for column in of.columns[1:]]
    axis = {"tickvals": x, "autorange": "reversed" if reverse else True}
    return Chart(
        element_id=f"published-{table}", height=320, traces=_by_type(of, x, x_title),
        look=layout(x_title, y_title, xaxis=axis),
        caption=f"Published. {of.caption} {of.source}.",
        label=f"{of.caption} One line per model",
    )  # fmt: skip


def _by_type(of: PublishedTable, x: Sequence[float], unit: str) -> list[dict[str, Any]]:
    return [
        line(list(zip(x, row[1:], strict=True)), kind, type_name(kind), where=f"%{{x}} {unit}")
        for kind, row in zip(_TYPES, of.rows, strict=True)
    ]
