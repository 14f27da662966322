"""The answers of a recall study: which model learns it sooner, and where attention goes."""

import math
from statistics import fmean, median
from typing import Any

from diffattn.lab.catalog.models import NEVER_ATTEND
from diffattn.lab.report.page.charts import Chart, interval_bars, layout, line, names_of
from diffattn.lab.report.page.committed import committed_recall
from diffattn.lab.report.page.runs import BASELINE, Study
from diffattn.lab.report.page.tables import Cell, Table, number_cell, table, type_cell
from diffattn.lab.report.page.wording import (
    MISSING,
    count,
    listing,
    number,
    span,
    type_color,
    type_name,
)

V1, UNIFORM = "diff", "diff_uniform"
MAPS = {
    "net": "Net weight",
    "map_1": "First map",
    "map_2": "Second map",
    "size": "Size of weights",
}
"""Keys of the recorded attention, and their names."""
KEY_GROUPS = {"answer": "the answer", "noise": "noise"}


def members_of(study: Study, task: str) -> dict[str, dict[str, Any]]:
    """Recorded results of every type and control of a task."""
    assert study.results is not None
    entry = study.results["tasks"][task]
    return {**entry["types"], **entry["controls"]}


def answer_sentence(study: Study, task: str) -> str:
    """Steps of V1, of the Transformer and of the control that decides, in words."""
    members = members_of(study, task)
    if V1 not in members or BASELINE not in members:
        return ""
    seeds = len(members[V1]["runs"])
    spread = f"medians of {seeds} seeds" if seeds > 1 else "one seed"
    words = (
        "DIFF V1 learns to find a value among noise in "
        f"{median_step(members[V1])} training steps, the "
        f"Transformer in {median_step(members[BASELINE])} ({spread})."
    )
    if beside := committed_beside(study, task):
        steps = beside["steps"]
        words += (
            f" The longer study of {beside['seeds']} seeds has {steps[V1]} and {steps[BASELINE]}, "
            f"and {steps[UNIFORM]} for a V1 whose second map is uniform, and so sees nothing"
        )
        words += ": what the second map sees may not be the reason." if beside["shared"] else "."
    elif UNIFORM in members:
        words += (
            " A V1 whose second map is uniform, and so sees nothing, needs "
            f"{median_step(members[UNIFORM])}."
        )
    return words


def weights_sentence(study: Study, task: str) -> str:
    """Net weight on noise and on the answer of the same models, in words; empty without."""
    members = members_of(study, task)
    names = {BASELINE: "the Transformer", V1: "V1", UNIFORM: "V1 with a uniform second map"}
    shown = [name for name in names if "attention" in members.get(name, {})]
    if len(shown) < len(names):
        return ""
    noise, answer = (
        [number(members[name]["attention"]["net"][group]["mean"], 2) for name in shown]
        for group in ("noise", "answer")
    )
    pairs = zip(shown, noise, strict=True)
    on_noise = listing(f"{value} with {names[name]}" for name, value in pairs)
    return (
        f"After training the weights on noise add up to {on_noise}; those on the answer to "
        f"{listing(answer)}. A negative sum means that the second map takes more from noise than "
        "the first one gives it."
    )


def committed_beside(study: Study, task: str) -> dict[str, Any] | None:
    """The committed study of the same task; ``None`` beside itself or beside another task."""
    committed = committed_recall()
    is_same = study.info.get("config_hash") == committed["config_hash"]
    return None if is_same or task != committed["task"] else committed


def sooner_sentences(study: Study, task: str) -> list[str]:
    """Who learns it sooner, here and in the committed study."""
    assert study.results is not None
    claim, beside = study.results["tasks"][task]["sooner"], committed_beside(study, task)
    if beside is None:
        return [claim["sentence"]]
    here = claim["sentence"]
    if claim["verdict"] == "inconclusive":
        here = f"With {len(study.info['seeds'])} seeds no lead is beyond chance."
    return [here, f"In the longer study of {beside['seeds']} seeds: {beside['sooner']}"]


def answer_table(study: Study, task: str) -> Table:
    """Steps, accuracy and attention of every model that attends, one row each."""
    every = members_of(study, task)
    members = {name: every[name] for name in (*study.types, UNIFORM) if name in every}
    with_attention = any("attention" in member for member in members.values())
    beside = committed_beside(study, task)
    rows = []
    for name, member in members.items():
        steps = sorted(math.inf if s is None else s for s in member["solved_steps"])
        ends = f"{_step(steps[0], member)} to {_step(steps[-1], member)}"
        row = [type_cell(name), number_cell(median_step(member), member["runs"], note=ends)]
        row.append(number_cell(number(fmean(member["test_accuracy"]), 3), member["runs"]))
        if with_attention:
            row += [share_cell(member, "net", group) for group in KEY_GROUPS]
        if beside is not None:
            row.append(number_cell(beside["steps"].get(name, MISSING)))
        rows.append(row)
    headers = ["Model", "Steps", "Accuracy"]
    caption = "Median step at which it is learned, and range over seeds; test accuracy."
    if with_attention:
        headers += ["Net on answer", "Net on noise"]
        caption += (
            " Net: sum of the last layer's weights A or A₁ − λA₂, and its 95 % interval; 0 on "
            "noise is best."
        )
    if beside is not None:
        headers.append(f"Steps, {beside['seeds']} seeds")
        caption += f" Last: the longer study of {beside['seeds']} seeds in published/recall."
    return table(caption, headers, rows)


def share_table(study: Study, task: str) -> Table:
    """Weights of every map on every group of keys, of the models that attend."""
    members = {
        name: member
        for name, member in members_of(study, task).items()
        if "attention" in member and name not in NEVER_ATTEND
    }
    groups = next(iter(members.values()))["attention"]["map_1"]
    rows = []
    for name, member in members.items():
        for key, title in MAPS.items():
            if key in member["attention"]:
                cells = [share_cell(member, key, group) for group in groups]
                rows.append([type_cell(name), number_cell(title), *cells])
    caption = (
        "Weights of the last layer at the queries, mean over heads and the test set. Net weight: "
        "sum of A₁ − λA₂, where noise of either sign cancels. Size: share of its absolute values, "
        "which noise keeps. Below each mean its interval over seeds."
    )
    return table(caption, ["Model", "Map", *(f"On {group}" for group in groups)], rows)


def share_chart(study: Study, task: str, element_id: str) -> Chart | None:
    """Weights on the answer and on noise: the Transformer's, V1's and the control's."""
    members = members_of(study, task)
    bars = [
        (f"{type_name(name)}: {MAPS[key].lower()}", name, members[name], key)
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
        shares = [member["attention"][key][group] for _, _, member, key in bars]
        bounds = [(share["mean"], share["low"], share["high"]) for share in shares]
        traces.append(
            {
                "type": "bar",
                "orientation": "h",
                "y": [label for label, *_ in bars],
                "x": [round(share["mean"], 4) for share in shares],
                "error_x": interval_bars(bounds) | {"thickness": 1, "width": 4},
                "name": f"on {words}",
                "marker": {"color": colors[group]},
                "hovertemplate": ["%{y}", f"%{{x:.3f}} on {words}"],
            }
        )
    runs = [run for _, _, member, _ in bars for run in member["runs"]]
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


def learning_chart(study: Study, task: str, element_id: str) -> Chart | None:
    """Accuracy over steps: the mean over seeds with the band from the lowest to the highest."""
    traces: list[dict[str, Any]] = []
    used: list[str] = []
    for name in (*study.types, UNIFORM):
        trials = {f"{task}-{name}-seed{seed}" for seed in study.info["seeds"]}
        runs = [run for run in study.runs if run.name in trials and run.series("accuracy")]
        if not runs:
            continue
        used += [run.name for run in runs]
        curves = [dict(run.series("accuracy")) for run in runs]
        steps = sorted({step for curve in curves for step in curve})
        # A run that is solved stops: its last accuracy stands for the rest.
        filled = [
            [round(curve[max(s for s in curve if s <= at)], 4) for curve in curves] for at in steps
        ]
        color = type_color(name)
        if len(runs) > 1:
            band: dict[str, Any] = {
                "type": "scatter",
                "mode": "lines",
                "line": {"width": 0},
                "hoverinfo": "skip",
            }
            band |= {"legendgroup": name, "showlegend": False, "x": steps}
            traces.append(band | {"y": [min(values) for values in filled]})
            fill: dict[str, Any] = {"fill": "tonexty", "fillcolor": f"{color}33"}
            traces.append(band | fill | {"y": [max(values) for values in filled]})
        mean = list(zip(steps, map(fmean, filled), strict=True))
        trace = line(mean, name, f"mean of {len(runs)} seeds", color=color)
        traces.append(trace | {"mode": "lines"})
    if not used:
        return None
    return Chart(
        element_id=element_id,
        traces=traces,
        look=layout("training step", "share of queries answered", yaxis={"range": [0, 1.03]}),
        caption="Accuracy on held-out sequences: mean over seeds, with the band of all seeds."
        f"{_plateau(study, task)}",
        runs=names_of(used),
        height=430,
        label="Accuracy over training steps, one line per model",
    )


def _plateau(study: Study, task: str) -> str:
    """The accuracy of guessing a value of the context, in words."""
    ceilings = study.results["tasks"][task]["ceilings"] if study.results else {}
    guess = ceilings.get("pairs")
    return "" if guess is None else f" A guess among the values shown gives {number(guess, 2)}."


def share_cell(member: dict[str, Any], key: str, group: str) -> Cell:
    """A mean sum of weights, with its interval."""
    share = member.get("attention", {}).get(key, {}).get(group)
    if share is None:
        return number_cell(MISSING)
    note = span(share["low"], share["high"], 2, none="")
    return number_cell(number(share["mean"], 2), member["runs"], note=note)


def median_step(member: dict[str, Any]) -> str:
    """Median step at which a model learned a task; where it did not, over its steps."""
    return _step(median(math.inf if s is None else s for s in member["solved_steps"]), member)


def _step(step: float, member: dict[str, Any]) -> str:
    return f"{step:,g}" if math.isfinite(step) else f"over {count(max(member['steps']))}"
