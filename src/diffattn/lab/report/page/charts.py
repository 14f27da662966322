"""Charts as plain values; a template writes their HTML and the page's script draws them."""

import html
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import cycle
from statistics import fmean
from typing import Any

from diffattn.lab.catalog.models import BASELINE
from diffattn.lab.report.page.wording import brief_names, type_color, type_name

# From white to dark blue.
SEQUENTIAL = [[0.0, "#ffffff"], [0.25, "#c6dbef"], [0.6, "#4292c6"], [1.0, "#08306b"]]
# Okabe and Ito's palette without grey, which is the baseline's.
PALETTE = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9")


@dataclass(frozen=True, kw_only=True, slots=True)
class Chart:
    """One chart. Its texts are plain text as in the records, not HTML."""

    element_id: str
    traces: Sequence[dict[str, Any]]
    """Traces as dictionaries of plotly, but with ``hovertemplate`` as a list of lines."""
    look: dict[str, Any]
    """Layout of plotly, from :func:`layout`."""
    caption: str
    runs: str = ""
    """The names of the runs behind the chart, from :func:`runs_sentence`."""
    height: int = 380
    """Pixels."""
    square: bool = False
    """Whether the page's script makes the chart about as high as wide."""

    @property
    def figure(self) -> dict[str, Any]:
        """The figure for plotly, every text escaped."""
        look = {**self.look, "height": self.height, "autosize": True}
        return {"data": _escape(self.traces), "layout": _escape(look)}


def _escape(value: Any, key: str = "") -> Any:
    """Escape all texts: plotly would read markup in names, labels and titles."""
    if key == "hovertemplate":
        return "<br>".join(map(_escape, value)) + "<extra></extra>"
    if isinstance(value, str):
        return html.escape(value, quote=False)  # plotly knows &lt;, &gt; and &amp;, not &quot;
    if isinstance(value, Mapping):
        return {name: _escape(entry, name) for name, entry in value.items()}
    if isinstance(value, Sequence):
        return [_escape(entry) for entry in value]
    if isinstance(value, float) and not math.isfinite(value):
        return None  # JSON has neither NaN nor infinity; plotly leaves a gap
    return value


def model_colors(kinds: Mapping[str, str]) -> dict[str, str]:
    """Label -> colour: the attention type's if no other label has that type, else a free one."""
    every, grey = list(kinds.values()), type_color("")
    single = {
        label: type_color(kind)
        for label, kind in kinds.items()
        if every.count(kind) == 1 and type_color(kind) != grey
    }
    palette = (type_color(BASELINE), *PALETTE)
    free = cycle(color for color in palette if color not in single.values())
    return {label: single.get(label) or next(free) for label in kinds}


def layout(x_title: str, y_title: str, **more: Any) -> dict[str, Any]:
    """The look that all charts share."""
    axis = {"gridcolor": "#e6e6e6", "zeroline": False, "linecolor": "#999", "automargin": True}
    size = {"size": 13}
    values: dict[str, Any] = {
        "font": {"family": "system-ui, sans-serif", "size": 13, "color": "#222"},
        "margin": {"l": 60, "r": 12, "t": 28, "b": 48},
        # The legend is below the plot, as plotly's buttons appear above it.
        "legend": {"orientation": "h", "yref": "container", "y": 0, "yanchor": "bottom"},
        "hoverlabel": {"align": "left"},
        "xaxis": {**axis, "title": {"text": x_title, "font": size}},
        "yaxis": {**axis, "title": {"text": y_title, "font": size}},
    }
    for name, change in more.items():
        values[name] = {**values.get(name, {}), **change} if isinstance(change, dict) else change
    return values


def line(
    curve: Sequence[tuple[Any, float | None]],
    group: str,
    label: str = "",
    *,
    thin: bool = False,
    dotted: bool = False,
    color: str | None = None,
    where: str = "step %{x:,}",
) -> dict[str, Any]:
    """One curve, with a gap at a ``None``; curves of a group are shown and hidden together.

    Args:
        group: Attention type, or any other name: the legend entry.
        label: Name of the run or mean, shown under the pointer.
        thin: Whether it is a single run behind a mean.
        dotted: Whether it is a reference value.
        where: Template of the pointer's text for the place of a point.
    """
    name = type_name(group)
    return {
        "type": "scatter",
        "x": [step for step, _ in curve],
        "y": [None if value is None else round(value, 6) for _, value in curve],
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
        "hovertemplate": [", ".join(filter(None, (name, label))), f"{where}: %{{y:.4f}}"],
    }


def interval_line(
    points: Iterable[tuple[float, Mapping[str, Any]]],
    group: str,
    where: str,
    *,
    color: str | None = None,
) -> dict[str, Any]:
    """Draw a line through recorded means, with intervals. Other arguments as in :func:`line`."""
    places = list(points)
    curve = [(place, entry["mean"]) for place, entry in places]
    bars = interval_bars((entry["mean"], entry["low"], entry["high"]) for _, entry in places)
    trace = line(curve, group, "mean of seeds", color=color, where=where)
    return trace | {"mode": "lines+markers", "error_y": bars}


def interval_bars(bounds: Iterable[tuple[float, float | None, float | None]]) -> dict[str, Any]:
    """Error bars of plotly. ``bounds``: value and both ends; no bar where an end is ``None``."""
    points = list(bounds)
    return {
        "type": "data",
        "symmetric": False,
        "thickness": 1,
        "width": 4,
        "array": [0 if high is None else high - value for value, _, high in points],
        "arrayminus": [0 if low is None else value - low for value, low, _ in points],
    }


def runs_and_mean(
    curves: Mapping[str, Sequence[tuple[float, float]]], group: str, color: str | None = None
) -> list[dict[str, Any]]:
    """A thin line per run, and a thick one for their mean; a single run has one line."""
    if len(curves) < 2:
        return [line(curve, group, run, color=color) for run, curve in curves.items()]
    single = [line(curve, group, run, thin=True, color=color) for run, curve in curves.items()]
    tables = list(map(dict, curves.values()))
    # Only at steps that all runs have: unfinished runs must not bend the mean.
    shared = sorted(set(tables[0]).intersection(*tables[1:]))
    mean = [(step, fmean(table[step] for table in tables)) for step in shared]
    return [*single, line(mean, group, f"mean of {len(curves)} runs", color=color)]


def lambda_over_training(
    name: str,
    runs: Mapping[str, Sequence[tuple[float, Sequence[float]]]],
    starts: Sequence[float],
    *,
    color: str,
    quantity: str,
    element_id: str,
) -> Chart:
    """Draw λ of every layer over training, and λ_init (``starts``) dotted.

    ``runs``: name -> steps and λ of all layers.
    """
    traces: list[dict[str, Any]] = []
    num_layers = len(next(iter(runs.values()))[0][1])
    for layer in range(num_layers):
        # From light (first layer) to full (last layer).
        strength = 1.0 if num_layers < 2 else 0.35 + 0.65 * layer / (num_layers - 1)
        channels = (int(color[i : i + 2], 16) for i in (1, 3, 5))
        shade = "#" + "".join(f"{round(255 + strength * (c - 255)):02x}" for c in channels)
        curves = {run: [(step, lam[layer]) for step, lam in rows] for run, rows in runs.items()}
        traces += runs_and_mean(curves, str(layer), shade)
        steps = traces[-1]["x"]
        if starts and steps:
            flat = [(steps[0], starts[layer]), (steps[-1], starts[layer])]
            traces.append(line(flat, str(layer), "λ_init", color=shade, dotted=True))
    legend = {"title": {"text": "layer ", "font": {"size": 13}}}
    dotted = " Dotted: λ_init." if starts else ""
    return Chart(
        element_id=element_id,
        traces=traces,
        look=layout("training step", quantity, legend=legend),
        caption=f"{name}: {quantity} per layer, first layer lightest.{dotted}",
        runs=runs_sentence(runs),
    )


def runs_sentence(runs: Iterable[str], noun: str = "Runs") -> str:
    """Names of the runs behind a chart, for its caption; empty without runs."""
    names = ", ".join(brief_names(runs))
    return f"{noun}: {names}." if names else ""
