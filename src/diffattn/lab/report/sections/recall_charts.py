"""Charts of a recall study: accuracy over training, and where attention goes."""

from collections.abc import Sequence
from statistics import fmean
from typing import Any

from diffattn.lab.report.page.charts import Chart, interval_bars, layout, line, names_of
from diffattn.lab.report.page.runs import BASELINE, Study, StudyRun
from diffattn.lab.report.page.wording import number, type_color, type_name
from diffattn.lab.report.sections.recall_tables import (
    KEY_GROUPS,
    MAPS,
    UNIFORM,
    V1,
    members_of,
)

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
    )
