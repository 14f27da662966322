"""Charts of a study of models on text: losses, their differences, and λ over training."""

from collections.abc import Sequence
from typing import Any

from diffattn.report.page.charts import Chart, interval_bars, layout, line, mean_curve, names_of
from diffattn.report.page.runs import Study, StudyRun, finite_numbers
from diffattn.report.page.wording import ends, number, type_color, type_name
from diffattn.report.study.summary import differences


def loss_chart(study: Study, metric: str, title: str, element_id: str) -> Chart | str:
    """One loss over training: a thick line per type, and its single runs as thin ones.

    Args:
        study: The study.
        metric: Key of the rows of ``metrics.jsonl``.
        title: Plain name of the metric, with its unit.
        element_id: Id of the element, unique in the page.

    Returns:
        The chart, or a sentence if no run recorded the metric.
    """
    traces: list[dict[str, Any]] = []
    used, repeated = [], False
    for name in study.types:
        runs = [run for run in study.runs_of(name) if run.series(metric)]
        used += [run.name for run in runs]
        curves = [run.series(metric) for run in runs]
        if len(runs) > 1:
            repeated = True
            for run, curve in zip(runs, curves, strict=True):
                traces.append(line(curve, name, run.name, thin=True))
        if runs:
            traces.append(line(mean_curve(curves), name, _mean_label(runs)))
    if not used:
        return f"No run recorded the {title}."
    key = "Thick: mean over seeds. Thin: one run each." if repeated else "One run each."
    return Chart(
        element_id=element_id,
        traces=traces,
        look=layout("training step", title),
        caption=f"{title.capitalize()}. {key}",
        runs=names_of(used),
        height=420,
        label=f"{title} over training steps, one line per attention type",
        buttons=_views(traces),
    )


def difference_chart(study: Study, element_id: str) -> Chart | None:
    """Paired differences with their intervals around zero; ``None`` if there are none."""
    shown = differences(study)
    if not shown:
        return None
    traces: list[dict[str, Any]] = []
    used = []
    for row, difference in enumerate(shown):
        interval, color = difference.interval, type_color(difference.attention_type)
        pairs = [f"{a} − {b}" for a, b in difference.runs]
        used += pairs
        bar: dict[str, Any] = {"visible": False}
        if interval.low is not None and interval.high is not None:
            bar = interval_bars([(interval.mean, interval.low, interval.high)])
            bar |= {"thickness": 3, "width": 8}
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
                "text": pairs,
                "hovertemplate": ["%{text}", "%{x:+.4f}"],
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
                "hovertemplate": [
                    type_name(difference.attention_type),
                    f"mean {number(interval.mean, signed=True)}",
                    ends(interval, signed=True),
                ],
            }
        )
    ticks = {
        "tickvals": list(range(len(shown))),
        "ticktext": [type_name(difference.attention_type) for difference in shown],
        "range": [len(shown) - 0.4, -0.6],
    }
    zero: dict[str, Any] = {"type": "line", "x0": 0, "x1": 0, "yref": "paper", "y0": 0, "y1": 1}
    zero["line"] = {"color": "#222", "width": 1.5, "dash": "dash"}
    unit = "nats per token; below 0 is better"
    return Chart(
        element_id=element_id,
        traces=traces,
        look=layout(unit, "", yaxis=ticks, showlegend=False, shapes=[zero]),
        caption=f"Validation loss minus that of {type_name(shown[0].baseline)}. Diamond and bar: "
        "mean and interval. Circles: single pairs.",
        runs=names_of(used, "Pairs"),
        height=110 + 60 * len(shown),
        label="Paired differences in validation loss with intervals; the table gives the numbers",
    )


def lambda_chart(study: Study, attention_type: str, element_id: str) -> Chart | str:
    """λ of every layer over training, with λ_init as dotted lines; a sentence if there is none."""
    runs = [run for run in study.runs_of(attention_type) if lambdas(run)]
    name = type_name(attention_type)
    if not runs:
        return f"No run of {name} recorded λ."
    traces: list[dict[str, Any]] = []
    num_layers = max(len(row) for run in runs for _, row in lambdas(run))
    recorded = (finite_numbers(run.result("lambda_init")) for run in runs)
    starts: list[float] = next(filter(None, recorded), [])
    for layer in range(num_layers):
        color = shade(type_color(attention_type), layer, num_layers)
        curves = [
            [(step, row[layer]) for step, row in lambdas(run) if layer < len(row)] for run in runs
        ]
        group = str(layer)
        if len(runs) > 1:
            for run, curve in zip(runs, curves, strict=True):
                traces.append(line(curve, group, run.name, thin=True, color=color))
        mean = mean_curve(curves)
        traces.append(line(mean, group, _mean_label(runs), color=color))
        if layer < len(starts) and mean:
            flat = [(mean[0][0], starts[layer]), (mean[-1][0], starts[layer])]
            traces.append(line(flat, group, "λ_init", color=color, dotted=True))
    what = "mean σ(λ)" if attention_type == "diff_v2" else "λ"
    legend = {"title": {"text": "layer ", "font": {"size": 13}}}
    dotted = " Dotted: λ_init." if starts else ""
    return Chart(
        element_id=element_id,
        traces=traces,
        look=layout("training step", what, legend=legend),
        caption=f"{name}: {what} per layer, first layer lightest.{dotted}",
        runs=names_of(run.name for run in runs),
        height=360,
        label=f"λ of every layer of {name} over training steps",
    )


def lambdas(run: StudyRun) -> list[tuple[float, list[float]]]:
    """Steps and λ per layer of one run."""
    return [(row["step"], lam) for row in run.metrics if (lam := finite_numbers(row.get("lam")))]


def shade(color: str, index: int, total: int) -> str:
    """``color`` mixed with white, from light (first layer) to full (last layer)."""
    strength = 1.0 if total < 2 else 0.35 + 0.65 * index / (total - 1)
    channels = (int(color[i : i + 2], 16) for i in (1, 3, 5))
    return "#" + "".join(f"{round(255 + strength * (c - 255)):02x}" for c in channels)


def _mean_label(runs: Sequence[StudyRun]) -> str:
    return runs[0].name if len(runs) == 1 else f"mean of {len(runs)} runs"


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
