"""Charts of a study of models on text: differences, losses, and λ over training."""

from collections.abc import Sequence
from typing import Any

from diffattn.lab.catalog.models import BASELINE, SIDE_EFFECTS
from diffattn.lab.report.page.charts import (
    Chart,
    interval_bars,
    lambda_over_training,
    layout,
    line,
    runs_and_mean,
    runs_sentence,
)
from diffattn.lab.report.page.runs import StudyRun
from diffattn.lab.report.page.wording import (
    brief_names,
    count,
    ends,
    listing,
    number,
    type_color,
    type_name,
)
from diffattn.lab.report.study.files import (
    COMPARED,
    COUNT_MODELS,
    LOSS,
    PART_MEANINGS,
    PARTS,
    RATES,
    TextStudy,
)


def difference_chart(study: TextStudy, element_id: str) -> Chart | None:
    """Rows minus the model that each changes, else types and controls minus the Transformer."""
    rows = study.rows or [
        {"variant": name, "baseline": BASELINE, "at": "best"}
        for name in study.variants
        if study.role_of(name) in COMPARED or name in SIDE_EFFECTS
    ]
    recorded = (study.difference(row["variant"], row["baseline"], row["at"]) for row in rows)
    shown = [entry for entry in recorded if entry is not None]
    labels, baseline = [type_name(entry["variant"]) for entry in shown], "the Transformer"
    if study.rows:
        baseline = "the model that a row changes"
        labels = [
            f"{label} − {type_name(entry['baseline'])}"
            + ("" if entry["at"] == "best" else f", {RATES[entry['at']]} rate")
            for label, entry in zip(labels, shown, strict=True)
        ]
    return difference_bars(shown, labels, baseline, element_id)


def loss_chart(study: TextStudy, element_id: str, part: str | None = None) -> Chart | None:
    """Validation loss over steps, of all tokens or of a part of them."""
    traces: list[dict[str, Any]] = []
    used, repeated = [], False
    for name in study.drawn:
        runs = {run.name: _losses(run, part) for run in study.runs_of(name)}
        curves = {run: curve for run, curve in runs.items() if curve}
        repeated |= len(curves) > 1
        traces += runs_and_mean(curves, name)
        used += list(curves)
    if not used:
        return None
    counted = _count_lines(study, traces, part)
    key = "Thick: mean over seeds. Thin: one run each." if repeated else "One run each."
    if counted:
        key += " Dotted: models that count the training tokens and learn nothing else."
    some = study.info["config"]["train"].get("evaluation_tokens")
    every = study.info.get("data", {}).get("validation_tokens")
    fewer = ""
    if some is not None and every is not None and some < every:
        fewer = f" Curves are of {count(some)} validation tokens, tables of all {count(every)}."
    title = "Validation loss" if part is None else f"{PARTS[part]}. {PART_MEANINGS[part]}"
    return Chart(
        element_id=element_id,
        traces=[*traces, *counted],
        look=layout("training step", "validation loss, nats per token"),
        caption=f"{title.rstrip('.')}. {key}{fewer}",
        runs=runs_sentence(used),
    )


def lambda_chart(study: TextStudy, variant: str, element_id: str) -> Chart | None:
    """λ of all layers over training; ``None`` if no run recorded λ."""
    recorded = {
        run.name: [(row["step"], row["lam"]) for row in run.metrics if row.get("lam")]
        for run in study.runs_of(variant)
    }
    runs = {run: rows for run, rows in recorded.items() if rows}
    if not runs:
        return None
    first = study.runs_of(variant)[0]
    return lambda_over_training(
        type_name(variant),
        runs,
        first.result("lambda_init") or (),
        color=type_color(variant),
        quantity="mean σ(λ)" if first.attention_type == "diff_v2" else "λ",
        element_id=element_id,
    )


def difference_bars(
    shown: Sequence[dict[str, Any]], labels: Sequence[str], baseline: str, element_id: str
) -> Chart | None:
    """Differences one below the other: mean, interval, single pairs. ``baseline``: in words."""
    if not shown:
        return None
    traces: list[dict[str, Any]] = []
    for row, (entry, label) in enumerate(zip(shown, labels, strict=True)):
        color, values = type_color(entry["variant"]), entry["values"]
        bar: dict[str, Any] = {"visible": False}
        if entry["low"] is not None and entry["high"] is not None:
            bar = interval_bars([(entry["mean"], entry["low"], entry["high"])])
            bar |= {"thickness": 3, "width": 8}
        common = {"type": "scatter", "mode": "markers"}
        open_circle = {"color": color, "size": 8, "symbol": "circle-open", "line": {"width": 1.5}}
        single = {
            "x": values,
            "y": [row] * len(values),
            "marker": open_circle,
            "text": [f"{run} − {other}" for run, other in entry["runs"]],
            "hovertemplate": ["%{text}", "%{x:+.4f}"],
        }
        words = [label, f"mean {number(entry['mean'], signed=True)}", ends(entry, signed=True)]
        mean = {
            "x": [entry["mean"]],
            "y": [row],
            "marker": {"color": color, "size": 13, "symbol": "diamond"},
            "error_x": bar,
            "hovertemplate": list(filter(None, words)),
        }
        traces += [common | single, common | mean] if len(values) > 1 else [common | mean]
    ticks = {
        "tickvals": list(range(len(shown))),
        "ticktext": list(labels),
        "range": [len(shown) - 0.4, -0.6],
    }
    zero = {"type": "line", "x0": 0, "x1": 0, "yref": "paper", "y0": 0, "y1": 1}
    shapes = [zero | {"line": {"color": "#888", "width": 1.5, "dash": "dash"}}]
    several = any(len(entry["values"]) > 1 for entry in shown)
    pairs = [zip(*entry["runs"], strict=True) for entry in shown if entry["runs"]]
    key = " Diamond and bar: mean and interval. Circles: single pairs." if several else ""
    return Chart(
        element_id=element_id,
        traces=traces,
        look=layout("nats per token", "", yaxis=ticks, showlegend=False, shapes=shapes),
        caption=f"Validation loss minus that of {baseline}. Below 0 is better.{key}",
        runs=runs_sentence(
            (" − ".join(listing(brief_names(side)) for side in pair) for pair in pairs), "Pairs"
        ),
        height=100 + 34 * len(shown),
    )


def _losses(run: StudyRun, part: str | None) -> list[tuple[float, float]]:
    if part is None:
        return run.series(LOSS)
    rows = ((row["step"], row.get("validation_parts", {})) for row in run.metrics)
    return [(step, parts[part]) for step, parts in rows if part in parts]


def _count_lines(
    study: TextStudy, traces: Sequence[dict[str, Any]], part: str | None
) -> list[dict[str, Any]]:
    recorded = study.recorded.get("count_models", {})
    steps = [step for trace in traces for step in trace["x"]]
    made, greys = [], ("#b0b0b0", "#808080", "#222222")
    for color, (name, title) in zip(greys, COUNT_MODELS.items(), strict=True):
        entry = recorded.get(name) or {}
        entry = entry.get("curve") or entry
        loss = entry.get("loss") if part is None else (entry.get("parts") or {}).get(part)
        if loss is not None and steps:
            ends_of_line = [(min(steps), loss), (max(steps), loss)]
            label = f"{title} {number(loss, 2)}"
            trace = line(ends_of_line, label, "counts", dotted=True, color=color)
            made.append({**trace, "showlegend": True})
    return made
