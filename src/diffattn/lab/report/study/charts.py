"""Charts of a study of models on text: losses, their differences, and λ over training."""

from collections.abc import Sequence
from statistics import fmean
from typing import Any

from diffattn.lab.catalog.models import SIDE_EFFECTS
from diffattn.lab.report.page.charts import Chart, interval_bars, layout, line, mean_curve, names_of
from diffattn.lab.report.page.elements import Text
from diffattn.lab.report.page.runs import BASELINE, StudyRun, finite_numbers, is_number
from diffattn.lab.report.page.wording import (
    brief_names,
    count,
    ends,
    listing,
    number,
    type_color,
    type_name,
)
from diffattn.lab.report.study.files import TextStudy
from diffattn.lab.report.study.names import AT, COUNT_MODELS, GREYS
from diffattn.lab.report.study.summary import (
    COMPARED,
    LOSS,
    Difference,
    differences,
    shown_in_charts,
    variants_of,
)

_BUDGETS = {
    "flops": ("training FLOPs", "%{x:.3s} FLOPs", "Loss after the same work."),
    "seconds": (
        "seconds of processor time",
        "%{x:,.0f} s",
        "Loss after the same processor time: that of a whole run, taken to be spent evenly over "
        "its steps.",
    ),
}


def loss_chart(study: TextStudy, metric: str, title: str, element_id: str) -> Chart | Text:
    """One loss over training: a thick line per variant, and its single runs as thin ones.

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
    for name in shown_in_charts(study):
        runs = [run for run in study.runs_of(name) if run.series(metric)]
        used += [run.name for run in runs]
        curves = [run.series(metric) for run in runs]
        if len(runs) > 1:
            repeated = True
            for run, curve in zip(runs, curves, strict=True):
                traces.append(line(curve, name, run.name, thin=True))
        if runs:
            traces.append(line(mean_curve(curves), name, mean_label(runs)))
    if not used:
        return Text(f"No run recorded the {title}.", "gap")
    buttons = _views(traces)
    counted = count_lines(study, traces) if metric == LOSS else []
    key = "Thick: mean over seeds. Thin: one run each." if repeated else "One run each."
    if counted:
        key += " Dotted: models that count the training tokens and learn nothing else."
    if metric == LOSS:
        key += evaluated_on(study)
    return Chart(
        element_id=element_id,
        traces=[*traces, *counted],
        look=layout("training step", title),
        caption=f"{title.capitalize()}. {key}",
        runs=names_of(used),
        height=460 if counted else 420,
        label=f"{title} over training steps, one line per model",
        buttons=buttons,
    )


def budget_chart(study: TextStudy, budget: str, element_id: str) -> Chart | Text:
    """Validation loss against what was spent: the mean of each variant.

    Args:
        study: The study.
        budget: ``"flops"`` or ``"seconds"``.
        element_id: Id of the element, unique in the page.

    Returns:
        The chart, or a sentence if no run recorded what is needed.
    """
    title, where, meaning = _BUDGETS[budget]
    traces: list[dict[str, Any]] = []
    used = []
    for name in shown_in_charts(study):
        spent = {run.name: _spent(run, budget) for run in study.runs_of(name)}
        runs = [run for run in study.runs_of(name) if spent[run.name]]
        curve = [
            (fmean(spent[run.name][step] for run in runs), loss)
            for step, loss in mean_curve([run.series(LOSS) for run in runs])
            if all(step in spent[run.name] for run in runs)
        ]
        if curve:
            traces.append(line(curve, name, mean_label(runs), where=where))
            used += [run.name for run in runs]
    if not used:
        return Text(f"No run recorded its {title}.", "gap")
    buttons = {
        name: change for name, change in _views(traces, "Whole").items() if name != "Log steps"
    }
    return Chart(
        element_id=element_id,
        traces=traces,
        look=layout(title, "validation loss, nats per token"),
        caption=f"{meaning} Mean over seeds.{evaluated_on(study)}",
        runs=names_of(used),
        height=400,
        label=f"Validation loss against {title}, one line per model",
        buttons=buttons,
    )


def evaluated_on(study: TextStudy) -> str:
    """Which tokens the curves are of, where those of the tables are more."""
    train, data = study.info["config"].get("train") or {}, study.info.get("data") or {}
    some, every = train.get("evaluation_tokens"), data.get("validation_tokens")
    if not (isinstance(some, int) and isinstance(every, int) and some < every):
        return ""
    counts = ((study.results or {}).get("count_models") or {}).values()
    with_curves, with_tables = "", " and dotted lines"
    if any(of.get("curve") for of in counts):
        with_curves, with_tables = with_tables, ""
    return (
        f" Curves{with_curves} are of {count(some)} validation tokens, spread evenly; "
        f"tables{with_tables} of all {count(every)}."
    )


def count_lines(
    study: TextStudy,
    traces: Sequence[dict[str, Any]],
    part: str | None = None,
    names: Sequence[str] = tuple(COUNT_MODELS),
) -> list[dict[str, Any]]:
    """A dotted line per count model, as long as the curves beside it.

    Args:
        study: The study.
        traces: The curves.
        part: Of the tokens. Default: all of them.
        names: The count models to draw.
    """
    recorded = (study.results or {}).get("count_models") or {}
    first = min((min(trace["x"]) for trace in traces if trace["x"]), default=0)
    last = max((max(trace["x"]) for trace in traces if trace["x"]), default=0)
    made = []
    for color, name in zip(GREYS, COUNT_MODELS, strict=True):
        entry = recorded.get(name) if name in names else None
        if entry is None:
            continue
        entry = entry.get("curve") or entry
        loss = entry["loss"] if part is None else (entry.get("parts") or {}).get(part)
        if loss is None:
            continue
        label = f"{COUNT_MODELS[name]} {number(loss, 2)}"
        trace = line([(first, loss), (last, loss)], label, "counts", dotted=True, color=color)
        made.append({**trace, "showlegend": True})
    return made


def difference_chart(study: TextStudy, element_id: str) -> Chart | None:
    """Paired differences with their intervals around zero; ``None`` if there are none."""
    every = variants_of(study)
    shown = [
        entry
        for entry in differences(study)
        if entry.baseline == BASELINE
        and entry.variant in every
        and (every[entry.variant].role in COMPARED or entry.variant in SIDE_EFFECTS)
    ]
    shown.sort(key=lambda entry: (list(every).index(entry.variant), entry.at))
    rates = len({entry.at for entry in shown}) > 1
    controls = any(entry.variant in SIDE_EFFECTS for entry in shown)
    names = [
        f"{type_name(entry.variant)}{f', {AT[entry.at]} rate' if rates else ''}" for entry in shown
    ]
    caption = (
        f"Validation loss minus that of the {type_name(BASELINE)}. Diamond and bar: "
        "mean and interval. Circles: single pairs."
        + (" Grey: controls, which have no second map that learns." if controls else "")
    )
    return difference_bars(shown, names, caption, element_id)


def difference_bars(
    shown: Sequence[Difference], labels: Sequence[str], caption: str, element_id: str
) -> Chart | None:
    """Differences one below the other: mean, interval and single pairs; ``None`` if none."""
    if not shown:
        return None
    traces: list[dict[str, Any]] = []
    for row, entry in enumerate(shown):
        interval, color = entry.interval, type_color(entry.variant)
        pairs = [f"{a} − {b}" for a, b in entry.runs]
        bar: dict[str, Any] = {"visible": False}
        if interval.low is not None and interval.high is not None:
            bar = interval_bars([(interval.mean, interval.low, interval.high)])
            bar |= {"thickness": 3, "width": 8}
        singles = {"color": color, "size": 8, "symbol": "circle-open", "line": {"width": 1.5}}
        traces.append(
            {
                "type": "scatter",
                "x": list(entry.values),
                "y": [row] * len(entry.values),
                "mode": "markers",
                "marker": singles,
                "text": pairs,
                "hovertemplate": ["%{text}", "%{x:+.4f}"],
            }
        )
        mark = "diamond" if entry.at == "best" else "diamond-open"
        traces.append(
            {
                "type": "scatter",
                "x": [interval.mean],
                "y": [row],
                "mode": "markers",
                "marker": {"color": color, "size": 13, "symbol": mark},
                "error_x": bar,
                "hovertemplate": [
                    labels[row],
                    f"mean {number(interval.mean, signed=True)}",
                    ends(interval, signed=True),
                ],
            }
        )
    ticks = {
        "tickvals": list(range(len(shown))),
        "ticktext": list(labels),
        "range": [len(shown) - 0.4, -0.6],
    }
    zero: dict[str, Any] = {"type": "line", "x0": 0, "x1": 0, "yref": "paper", "y0": 0, "y1": 1}
    zero["line"] = {"color": "#222", "width": 1.5, "dash": "dash"}
    unit = "nats per token; below 0 is better"
    return Chart(
        element_id=element_id,
        traces=traces,
        look=layout(unit, "", yaxis=ticks, showlegend=False, shapes=[zero]),
        caption=caption,
        runs=names_of(map(_pairs, shown), "Pairs"),
        height=110 + 50 * len(shown),
        label="Paired differences in validation loss with intervals; the table gives the numbers",
    )


def lambda_chart(study: TextStudy, variant: str, element_id: str) -> Chart | Text:
    """λ of every layer over training, with λ_init as dotted lines; a sentence if there is none."""
    runs = [run for run in study.runs_of(variant) if lambdas(run)]
    name = type_name(variant)
    if not runs:
        return Text(f"No run of {name} recorded λ.", "gap")
    traces: list[dict[str, Any]] = []
    num_layers = max(len(row) for run in runs for _, row in lambdas(run))
    recorded = (finite_numbers(run.result("lambda_init")) for run in runs)
    starts: list[float] = next(filter(None, recorded), [])
    for layer in range(num_layers):
        color = shade(type_color(variant), layer, num_layers)
        curves = [
            [(step, row[layer]) for step, row in lambdas(run) if layer < len(row)] for run in runs
        ]
        group = str(layer)
        if len(runs) > 1:
            for run, curve in zip(runs, curves, strict=True):
                traces.append(line(curve, group, run.name, thin=True, color=color))
        mean = mean_curve(curves)
        traces.append(line(mean, group, mean_label(runs), color=color))
        if layer < len(starts) and mean:
            flat = [(mean[0][0], starts[layer]), (mean[-1][0], starts[layer])]
            traces.append(line(flat, group, "λ_init", color=color, dotted=True))
    what = "mean σ(λ)" if runs[0].attention_type == "diff_v2" else "λ"
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


def mean_label(runs: Sequence[StudyRun]) -> str:
    """What a mean over runs is called under the pointer."""
    return runs[0].name if len(runs) == 1 else f"mean of {len(runs)} runs"


def _pairs(entry: Difference) -> str:
    """The runs behind a difference, in short."""
    return " − ".join(listing(brief_names(side)) for side in zip(*entry.runs, strict=True))


def _spent(run: StudyRun, budget: str) -> dict[float, float]:
    """Step to what the run had spent there; empty if that is not known."""
    if budget == "flops":
        each: Any = run.record.model.get("train_flops_per_token")
        tokens = run.series("tokens") if is_number(each) else ()
        return {step: float(each) * n for step, n in tokens}
    seconds = (run.costs or {}).get("cpu_seconds")
    last = max((row["step"] for row in run.metrics), default=0)
    if run.results is None or not is_number(seconds) or not last:
        return {}
    return {row["step"]: seconds * (row["step"] / last) for row in run.metrics}


def _views(
    traces: Sequence[dict[str, Any]], whole_name: str = "All steps"
) -> dict[str, dict[str, Any]]:
    """Buttons of a loss chart; each sets the whole view, so that their order does not matter."""
    whole = {"xaxis.autorange": True, "yaxis.autorange": True}
    linear = {"xaxis.type": "linear", "xaxis.tickmode": "auto"}
    marks = [digit * 10**power for power in range(9) for digit in (1, 2, 5)]
    log = {"xaxis.type": "log", "xaxis.tickmode": "array", "xaxis.tickvals": marks}
    views: dict[str, dict[str, Any]] = {
        whole_name: {**linear, **whole},
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
