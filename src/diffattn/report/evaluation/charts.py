"""Charts of one protocol: a line over one number, a heat map over two, per model."""

from collections.abc import Mapping, Sequence
from typing import Any

from diffattn.records.evaluations import EvalResult, Metric
from diffattn.report.page.charts import embed, layout
from diffattn.report.page.wording import esc, number, type_color

# Okabe and Ito's palette without grey, for models whose attention type has a colour already.
_COLORS = ("#4d4d4d", "#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9")
_SEQUENTIAL = [[0.0, "#ffffff"], [0.25, "#c6dbef"], [0.6, "#4292c6"], [1.0, "#08306b"]]

Facet = tuple[str, tuple[tuple[str, str], ...], tuple[str, ...]]
"""Name of the metric, what is fixed, and which numbers vary."""


def protocol_charts(results: Sequence[EvalResult], prefix: str) -> str:
    """HTML of every chart that the metrics of one protocol give.

    Metrics that lie at one varying number (a length, a count) become a line per model with its
    interval, if it takes three values or more, at two a heat map per model. Others stand in the
    table alone.

    Args:
        results: One per model, of one variant.
        prefix: Start of the element ids, unique in the page.
    """
    colors = model_colors(results)
    facets = list(dict.fromkeys(_facet(m) for r in results for m in r.metrics if m.where))
    lines, maps = [], []
    for index, facet in enumerate(facets):
        found = {
            str(r.model["label"]): [m for m in r.metrics if m.where and _facet(m) == facet]
            for r in results
        }
        dims = [d for d in facet[2] if _values(found, d) > 1]
        if len(dims) == 1 and _values(found, dims[0]) > 2:
            lines.append(_lines(found, facet, dims[0], f"{prefix}{index}", colors))
        elif len(dims) == 2:
            maps.append(_heat_maps(found, facet, dims, f"{prefix}{index}"))
    side_by_side = f'<div class="pair">{"".join(lines)}</div>\n' if lines else ""
    return side_by_side + "".join(maps)


def model_colors(results: Sequence[EvalResult]) -> dict[str, str]:
    """One colour per model: that of its attention type where that is its own."""
    kinds = {str(r.model["label"]): str(r.model.get("attention_type")) for r in results}
    own = [kind for kind in kinds.values() if list(kinds.values()).count(kind) == 1]
    taken = {type_color(kind) for kind in own}
    free = iter([color for color in _COLORS if color not in taken] * len(kinds))
    return {label: type_color(k) if k in own else next(free) for label, k in kinds.items()}


def _facet(metric: Metric) -> Facet:
    numbers = tuple(key for key, value in metric.where.items() if _is_number(value))
    fixed = tuple((key, str(v)) for key, v in metric.where.items() if not _is_number(v))
    return metric.name, fixed, numbers


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _values(found: Mapping[str, Sequence[Metric]], key: str) -> int:
    return len({m.where[key] for metrics in found.values() for m in metrics})


def _title(facet: Facet) -> str:
    return ", ".join([facet[0], *(f"{key} {value}" for key, value in facet[1])])


def _bars(found: Mapping[str, Sequence[Metric]]) -> str:
    """What the bars of a chart are; a point without interval has none."""
    methods = dict.fromkeys(
        f"{m.method}, {100 * m.level:g} %"
        for metrics in found.values()
        for m in metrics
        if m.low is not None
    )
    return f"Bars: intervals by {'; '.join(methods)}." if methods else "No intervals."


def _lines(
    found: Mapping[str, Sequence[Metric]],
    facet: Facet,
    key: str,
    element: str,
    colors: Mapping[str, str],
) -> str:
    traces: list[dict[str, Any]] = []
    for label, metrics in found.items():
        ordered = sorted(metrics, key=lambda m: m.where[key])
        bar = {
            "type": "data", "symmetric": False, "thickness": 1, "width": 3,
            "array": [0 if m.high is None else m.high - m.value for m in ordered],
            "arrayminus": [0 if m.low is None else m.value - m.low for m in ordered],
        }  # fmt: skip
        traces.append(
            {
                "type": "scatter",
                "mode": "lines+markers",
                "name": esc(label),
                "line": {"color": colors[label], "width": 2},
                "x": [m.where[key] for m in ordered],
                "y": [m.value for m in ordered],
                "error_y": bar,
                "hovertemplate": f"{esc(label)}<br>{esc(key)} %{{x}}: %{{y:.4f}}<extra></extra>",
            }
        )
    positive = [x for trace in traces for x in trace["x"]]
    wide = min(positive) > 0 and max(positive) / min(positive) >= 16
    first = next(m for metrics in found.values() for m in metrics)
    return embed(
        traces,
        layout(
            esc(key), esc(f"{facet[0]}, {first.unit}"), xaxis={"type": "log" if wide else "linear"}
        ),
        element,
        f"{esc(_title(facet))} over {esc(key)}. {esc(_bars(found))}",
        height=340,
        label=f"{_title(facet)} over {key}, one line per model; the table gives the numbers",
    )


def _heat_maps(
    found: Mapping[str, Sequence[Metric]], facet: Facet, dims: Sequence[str], element: str
) -> str:
    across, down = dims
    charts = []
    every = [m.value for metrics in found.values() for m in metrics]
    share = next(m for metrics in found.values() for m in metrics).unit == "share"
    for index, (label, metrics) in enumerate(found.items()):
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
            "colorscale": _SEQUENTIAL,
            "showscale": False,
            "hovertemplate": f"{esc(across)} %{{x}}, {esc(down)} %{{y}}: %{{z:.4f}}<extra></extra>",
        }
        category = {"type": "category"}
        charts.append(
            embed(
                [trace],
                layout(
                    esc(across), esc(down), xaxis=category,
                    yaxis={**category, "autorange": "reversed"},
                ),
                f"{element}-{index}",
                f"{esc(label)}: {esc(_title(facet))}.",
                height=140 + 34 * len(ys),
                label=f"{_title(facet)} of {label} over {across} and {down}",
            )
        )  # fmt: skip
    return f'<div class="pair">{"".join(charts)}</div>\n'
