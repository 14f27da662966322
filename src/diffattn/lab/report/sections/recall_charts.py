"""Charts of a recall study: accuracy over training, and where attention goes."""

from collections.abc import Collection, Sequence
from itertools import cycle
from statistics import fmean
from typing import Any

from diffattn.lab.report.page.charts import Chart, interval_bars, layout, line, names_of
from diffattn.lab.report.page.elements import Text
from diffattn.lab.report.page.runs import BASELINE, Study, StudyRun
from diffattn.lab.report.page.wording import number, type_color, type_name
from diffattn.lab.report.sections.recall_tables import (
    CEILING_NAMES,
    KEY_GROUPS,
    MAPS,
    UNIFORM,
    V1,
    members_of,
    task_name,
)

_CONTROL_COLORS = ("#999999", "#e69f00", "#cc79a7", "#56b4e9", "#0072b2", "#d55e00")
_AXIS = {"range": [0, 1.03]}


def learning_chart(study: Study, task: str, element_id: str) -> Chart | None:
    """Accuracy over steps: mean over seeds, with a band from the lowest to the highest seed."""
    traces: list[dict[str, Any]] = []
    used: list[str] = []
    for name in (*study.types, UNIFORM):
        trials = {f"{task}-{name}-seed{seed}" for seed in study.info["seeds"]}
        runs = [run for run in study.runs if run.name in trials and run.series("accuracy")]
        used += [run.name for run in runs]
        traces += _band(name, runs) if runs else []
    if not used:
        return None
    guess = _ceilings_of(study, task).get("pairs")
    plateau = "" if guess is None else f" A guess among the values shown gives {number(guess, 2)}."
    return Chart(
        element_id=element_id,
        traces=traces,
        look=layout("training step", "share of queries answered", yaxis=_AXIS),
        caption="Accuracy on held-out sequences: mean over seeds, with the band of all seeds."
        f"{plateau}",
        runs=names_of(used),
        height=430,
        label="Accuracy over training steps, one line per model",
    )


def _band(name: str, runs: Sequence[StudyRun]) -> list[dict[str, Any]]:
    """The mean of a model's runs; several runs also have a band from lowest to highest."""
    curves = [dict(run.series("accuracy")) for run in runs]
    steps = sorted({step for curve in curves for step in curve})
    # A run stops once it has solved the task: its last accuracy is used for later steps.
    filled = [
        [round(curve[max(s for s in curve if s <= at)], 4) for curve in curves] for at in steps
    ]
    points = list(zip(steps, map(fmean, filled), strict=True))
    mean = line(points, name, f"mean of {len(runs)} seeds") | {"mode": "lines"}
    if len(runs) == 1:
        return [mean]
    band = {
        "type": "scatter",
        "mode": "lines",
        "line": {"width": 0},
        "hoverinfo": "skip",
        "legendgroup": name,
        "showlegend": False,
        "x": steps,
    }
    fill = {"fill": "tonexty", "fillcolor": f"{type_color(name)}33"}
    low, high = ([end(values) for values in filled] for end in (min, max))
    return [band | {"y": low}, band | fill | {"y": high}, mean]


def accuracy_chart(
    study: Study, task: str, names: Collection[str], element_id: str
) -> Chart | Text:
    """Draw validation accuracy over training, one line per run, with the guessing ceilings."""
    colors = dict(zip(study.info["controls"], cycle(_CONTROL_COLORS), strict=False))
    traces: dict[str, dict[str, Any]] = {}
    for name in (*study.types, *study.info["controls"]):
        runs = [x for x in study.runs if x.name in names and x.name.startswith(f"{task}-{name}-")]
        curves = {run.name: curve for run in runs if (curve := run.series("accuracy"))}
        for place, (run_name, curve) in enumerate(curves.items()):
            trace = line(curve, name, run_name, color=colors.get(name))
            trace["line"]["width"] = 1.8
            traces[run_name] = trace | {"mode": "lines", "showlegend": place == 0}
    if not traces:
        return Text("No run recorded an accuracy.", "gap")
    last = max(trace["x"][-1] for trace in traces.values())
    by_value: dict[float, list[str]] = {}
    for name, value in _ceilings_of(study, task).items():
        by_value.setdefault(value, []).append(CEILING_NAMES.get(name, name))
    ceilings = []
    for color, (value, words) in zip(
        ("#999999", "#cc79a7", "#e69f00"), by_value.items(), strict=False
    ):
        # Short, because a phone cuts off long entries of a legend. The page explains each guess.
        group, flat = f"guess: {number(value, 3)}", [(0, value), (last, value)]
        ceiling = line(flat, group, ", or ".join(words), dotted=True, color=color)
        ceilings.append({**ceiling, "showlegend": True})
    title = task_name(task)
    return Chart(
        element_id=element_id,
        traces=[*traces.values(), *ceilings],
        look=layout("training step", "share of queries answered", yaxis=_AXIS),
        caption=f"{title}: accuracy on the validation set, one line per run. A line that "
        "ends early was solved there. Dotted: accuracy of guessing.",
        runs=names_of(traces),
        height=420,
        label=f"{title}: accuracy over training steps, one line per run",
    )


def _ceilings_of(study: Study, task: str) -> dict[str, float]:
    return dict(study.results["tasks"][task]["ceilings"]) if study.results else {}


def share_chart(study: Study, task: str, element_id: str) -> Chart | None:
    """Weights on the answer and on noise of the Transformer, V1 and the uniform second map."""
    members = members_of(study, task)
    bars = [
        (f"{type_name(name)}: {MAPS[key].lower()}", members[name], key)
        for name, key in (
            (BASELINE, "net"),
            (V1, "map_1"),
            (V1, "map_2"),
            (V1, "net"),
            (UNIFORM, "map_2"),
            (UNIFORM, "net"),
        )
        if "attention" in members.get(name, {})
    ]
    if not bars:
        return None
    colors = {"answer": "#009e73", "noise": "#999999"}
    traces = []
    for group, words in KEY_GROUPS.items():
        shares = [member["attention"][key][group] for _, member, key in bars]
        bounds = [(share["mean"], share["low"], share["high"]) for share in shares]
        traces.append(
            {
                "type": "bar",
                "orientation": "h",
                "y": [label for label, *_ in bars],
                "x": [round(share["mean"], 4) for share in shares],
                "error_x": interval_bars(bounds),
                "name": f"on {words}",
                "marker": {"color": colors[group]},
                "hovertemplate": ["%{y}", f"%{{x:.3f}} on {words}"],
            }
        )
    runs = [run for _, member, _ in bars for run in member["runs"]]
    axis = {"autorange": "reversed"}
    return Chart(
        element_id=element_id,
        traces=traces,
        look=layout("sum of weights", "", yaxis=axis, barmode="group"),
        caption="Weights on the answer and on noise: mean over seeds and its interval. The uniform "
        "map of the control shows the weight that noise gets by chance.",
        runs=names_of(dict.fromkeys(runs)),
        height=430,
        label="Sum of weights on the answer and on noise; the table gives the numbers",
    )
