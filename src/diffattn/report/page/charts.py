"""Charts of a report: each is a figure element whose caption names the runs behind it."""

import json
from collections.abc import Iterable, Sequence
from statistics import fmean
from typing import Any

from plotly.io.json import to_json_plotly

from diffattn.report.page.wording import ends, esc, number, type_color, type_name
from diffattn.report.study.files import BASELINE, Study, StudyRun, is_number
from diffattn.report.study.summary import differences

_GRID = "#e6e6e6"
_CONFIG = {
    "responsive": True,
    "displaylogo": False,
    "displayModeBar": "hover",
    # Named one by one: the default bar holds a button that uploads the figure.
    "modeBarButtons": [["zoom2d", "pan2d", "resetScale2d", "toImage"]],
}


def embed(
    traces: Sequence[dict[str, Any]],
    look: dict[str, Any],
    element_id: str,
    caption: str,
    *,
    height: int,
    label: str,
    buttons: dict[str, dict[str, Any]] | None = None,
    square: bool = False,
) -> str:
    """HTML of one chart, without the plotly script.

    Args:
        traces: What is drawn, as plotly's own dictionaries.
        look: The layout, from :func:`layout`.
        element_id: Id of its element, unique in the page.
        caption: HTML under the chart.
        height: Pixels.
        label: Plain text for readers who cannot see the chart.
        buttons: Text of a button to the layout changes it makes.
        square: Make the chart about as high as its column is wide; ``height`` holds until then.
    """
    figure = {"data": list(traces), "layout": {**look, "height": height, "autosize": True}}
    # Escapes what could end the script. One fixed engine: a faster one would write other bytes.
    spec = to_json_plotly(figure, engine="json")
    bar = "".join(
        f'<button type="button" data-chart="{element_id}" data-layout="{esc(json.dumps(change))}">'
        f"{esc(text)}</button>"
        for text, change in (buttons or {}).items()
    )
    return (
        "<figure>\n"
        + (f'<div class="buttons">{bar}</div>\n' if bar else "")
        + f'<div id="{element_id}" class="chart{" square" if square else ""}" '
        f'style="height:{height}px" role="img" '
        f'aria-label="{esc(label)}"></div>\n'
        f"<figcaption>{caption}</figcaption>\n"
        f'<script>charts.push(["{element_id}", {spec}, {json.dumps(_CONFIG)}]);</script>\n'
        "</figure>\n"
    )


def layout(x_title: str, y_title: str, **more: Any) -> dict[str, Any]:
    """The look that all charts share."""
    axis = {"gridcolor": _GRID, "zeroline": False, "linecolor": "#999", "automargin": True}
    size = {"size": 13}
    values: dict[str, Any] = {
        "font": {"family": "system-ui, sans-serif", "size": 13, "color": "#222"},
        "margin": {"l": 60, "r": 12, "t": 28, "b": 48},
        # Below the plot: the buttons that appear under the pointer lie on top of it.
        "legend": {
            "orientation": "h",
            "yref": "container",
            "y": 0,
            "yanchor": "bottom",
            "x": 0,
            "xanchor": "left",
        },
        "hoverlabel": {"align": "left"},
        "xaxis": {**axis, "title": {"text": x_title, "font": size}},
        "yaxis": {**axis, "title": {"text": y_title, "font": size}},
    }
    for name, change in more.items():
        values[name] = {**values.get(name, {}), **change} if isinstance(change, dict) else change
    return values


def loss_chart(study: Study, metric: str, title: str, element_id: str) -> str:
    """One loss over training: a thick line per type, and its single runs as thin ones.

    Args:
        study: The study.
        metric: Key of the rows of ``metrics.jsonl``.
        title: Plain name of the metric, with its unit.
        element_id: Id of the element, unique in the page.

    Returns:
        HTML; a note instead of a chart if no run recorded the metric.
    """
    traces: list[dict[str, Any]] = []
    used, repeated = [], False
    for name in study.types:
        runs = [run for run in study.runs_of(name) if series(run, metric)]
        used += [run.name for run in runs]
        curves = [series(run, metric) for run in runs]
        if len(runs) > 1:
            repeated = True
            for run, curve in zip(runs, curves, strict=True):
                traces.append(line(curve, name, run.name, thin=True))
        if runs:
            label = runs[0].name if len(runs) == 1 else f"mean of {len(runs)} runs"
            traces.append(line(mean_curve(curves), name, label))
    if not used:
        return f'<p class="gap">No run recorded the {esc(title)}.</p>\n'
    key = "Thick: mean over seeds. Thin: one run each. " if repeated else "One run each. "
    caption = f"{esc(title.capitalize())}. {key}"
    return embed(
        traces,
        layout("training step", title),
        element_id,
        caption + names_of(used),
        height=420,
        label=f"{title} over training steps, one line per attention type",
        buttons=_views(traces),
    )


def difference_chart(study: Study, element_id: str) -> str:
    """Paired differences with their intervals around zero; empty text if there are none."""
    found = [d for d in differences(study) if d.metric == "validation_loss"]
    if not found:
        return ""
    traces: list[dict[str, Any]] = []
    used = []
    for row, difference in enumerate(found):
        interval, color = difference.interval, type_color(difference.attention_type)
        pairs = [f"{a} − {b}" for a, b in difference.runs]
        used += pairs
        bar: dict[str, Any] = {"visible": False}
        if interval.low is not None and interval.high is not None:
            bar = {
                "type": "data",
                "symmetric": False,
                "array": [interval.high - interval.mean],
                "arrayminus": [interval.mean - interval.low],
                "thickness": 3,
                "width": 8,
            }
        traces.append(
            {
                "type": "scatter",
                "x": list(difference.values),
                "y": [row] * len(difference.values),
                "mode": "markers",
                "marker": {
                    "color": color,
                    "size": 8,
                    "symbol": "circle-open",
                    "line": {"width": 1.5},
                },
                "text": [esc(pair) for pair in pairs],
                "hovertemplate": "%{text}<br>%{x:+.4f}<extra></extra>",
            }
        )
        traces.append(
            {
                "type": "scatter",
                "x": [interval.mean],
                "y": [row],
                "mode": "markers",
                "marker": {"color": color, "size": 13, "symbol": "diamond"},
                "error_x": bar,
                "hovertemplate": (
                    f"{esc(type_name(difference.attention_type))}<br>mean "
                    f"{number(interval.mean, signed=True)}<br>{ends(interval, signed=True)}"
                    "<extra></extra>"
                ),
            }
        )
    names = [esc(type_name(difference.attention_type)) for difference in found]
    ticks = {
        "tickvals": list(range(len(found))),
        "ticktext": names,
        "range": [len(found) - 0.4, -0.6],
    }
    zero: dict[str, Any] = {"type": "line", "x0": 0, "x1": 0, "yref": "paper", "y0": 0, "y1": 1}
    zero["line"] = {"color": "#222", "width": 1.5, "dash": "dash"}
    unit = "nats per token; below 0 is better"
    caption = (
        f"Validation loss minus that of {esc(type_name(found[0].baseline))}. Diamond and bar: mean "
        "and interval. Circles: single pairs. "
    )
    return embed(
        traces,
        layout(unit, "", yaxis=ticks, showlegend=False, shapes=[zero]),
        element_id,
        caption + names_of(used, "Pairs"),
        height=110 + 60 * len(found),
        label="Paired differences in validation loss with intervals; the table gives the numbers",
    )


def series(run: StudyRun, metric: str) -> list[tuple[float, float]]:
    """Steps and values of one metric of one run; rows without it are skipped."""
    return [(row["step"], row[metric]) for row in run.metrics if is_number(row.get(metric))]


def mean_curve(curves: Sequence[Sequence[tuple[float, float]]]) -> list[tuple[float, float]]:
    """Mean over runs, at the steps that every run has: an unfinished run must not bend it."""
    tables = [dict(curve) for curve in curves]
    shared = set(tables[0]).intersection(*tables[1:]) if tables else set()
    return [(step, fmean(table[step] for table in tables)) for step in sorted(shared)]


def names_of(runs: Iterable[str], noun: str = "Runs") -> str:
    """Names of the runs behind a chart, for its caption."""
    return f'<span class="runs">{noun}: {esc(", ".join(runs))}.</span>'


def line(
    curve: Sequence[tuple[float, float]],
    group: str,
    label: str,
    *,
    thin: bool = False,
    dotted: bool = False,
    color: str | None = None,
) -> dict[str, Any]:
    """One curve; curves of a group are shown and hidden together.

    Args:
        curve: Steps and values.
        group: Attention type, or any other name: the legend entry.
        label: Plain name of the run or mean, shown under the pointer.
        thin: A single run behind a mean.
        dotted: A reference value.
        color: Hex colour. Default: that of the attention type ``group``.
    """
    name = esc(type_name(group))
    return {
        "type": "scatter",
        "x": [step for step, _ in curve],
        "y": [round(value, 6) for _, value in curve],
        "name": name,
        "legendgroup": group,
        "showlegend": not (thin or dotted),
        "mode": "lines" if thin or dotted or len(curve) > 30 else "lines+markers",
        "opacity": 0.4 if thin else 1,
        "marker": {"size": 5},
        "line": {
            "color": color or type_color(group),
            "width": 1 if thin else 1.5 if dotted else 2.5,
            "dash": "dot" if dotted else "dash" if group == BASELINE else "solid",
        },
        "hovertemplate": f"{name}, {esc(label)}<br>step %{{x:,}}: %{{y:.4f}}<extra></extra>",
    }


def _views(traces: Sequence[dict[str, Any]]) -> dict[str, dict[str, Any]]:
    """Buttons of a loss chart; each sets the whole view, so that their order does not matter."""
    whole = {"xaxis.autorange": True, "yaxis.autorange": True}
    linear = {"xaxis.type": "linear", "xaxis.tickmode": "auto"}
    marks = [digit * 10**power for power in range(9) for digit in (1, 2, 5)]
    log = {"xaxis.type": "log", "xaxis.tickmode": "array", "xaxis.tickvals": marks}
    views: dict[str, dict[str, Any]] = {
        "All steps": {**linear, **whole},
        "Log steps": {**log, **whole},
    }
    last = max((max(trace["x"]) for trace in traces if trace["x"]), default=0)
    late = [
        y for trace in traces for x, y in zip(trace["x"], trace["y"], strict=True) if x >= last / 2
    ]
    if last and late:
        margin = 0.05 * (max(late) - min(late)) or 0.01
        views["Second half"] = {
            **linear,
            "xaxis.range": [last / 2, last],
            "yaxis.range": [min(late) - margin, max(late) + margin],
        }
    return views
