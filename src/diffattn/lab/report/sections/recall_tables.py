"""Tables and charts of a recall study."""

import math
from collections.abc import Sequence
from statistics import fmean
from typing import Any

from diffattn.files.io import read_json
from diffattn.lab.catalog.models import BASELINE, NEVER_ATTEND
from diffattn.lab.report.page.charts import Chart, interval_bars, layout, line, runs_sentence
from diffattn.lab.report.page.runs import Study, StudyRun
from diffattn.lab.report.page.study_page import RECALL
from diffattn.lab.report.page.tables import (
    Cell,
    Table,
    mean_cell,
    number_cell,
    record_table,
    table,
    type_cell,
    word_cell,
)
from diffattn.lab.report.page.wording import (
    MISSING,
    count,
    listing,
    number,
    p_value,
    pairs,
    span,
    type_color,
    type_name,
)

V1, UNIFORM = "diff", "diff_uniform"
MAPS = {"net": "Net weight", "map_1": "First map", "map_2": "Second map", "size": "Size of weights"}
"""Key of the recorded attention -> its name."""
KEY_GROUPS = {"answer": "the answer", "noise": "noise"}
CEILING_NAMES = {
    "values": "any value",
    "pairs": "a value of the context",
    "elimination": "a value not answered before",
}


def swept_models(info: dict[str, Any]) -> list[str]:
    """Models whose own learning rate was swept, and which have all seeds."""
    return [
        *info["types"],
        *(name for name, control in info["controls"].items() if control["like"] == name),
    ]


def task_name(task: str) -> str:
    """Human name of a task; an unknown task keeps its id."""
    return {"noisy_recall": "Noisy recall"}.get(task, task)


def task_results(study: Study, task: str) -> dict[str, Any]:
    """Recorded results of a task."""
    return dict(study.recorded["tasks"][task])


def models_of(study: Study, task: str) -> dict[str, dict[str, Any]]:
    """Type or control -> its recorded results on a task."""
    entry = task_results(study, task)
    return {**entry["types"], **entry["controls"]}


def median_step(model: dict[str, Any]) -> str:
    """Median step at which a model learned a task; ``"over N"`` if half of its runs did not."""
    return _step(model["median_step"], model)


def _step(step: float | None, model: dict[str, Any]) -> str:
    return f"over {count(max(model['steps']))}" if step is None else f"{step:,g}"


def _step_cell(model: dict[str, Any]) -> Cell:
    steps = sorted(model["solved_steps"], key=lambda step: math.inf if step is None else step)
    low, high = _step(steps[0], model), _step(steps[-1], model)
    note = "" if low == high else f"{low} to {high}"
    return number_cell(median_step(model), model["runs"], note=note)


def find_difference(
    entry: dict[str, Any], variant: str, baseline: str = BASELINE
) -> dict[str, Any] | None:
    """A recorded difference in steps; ``None`` if the two were not compared."""
    rows = entry["differences"]
    return next((x for x in rows if (x["variant"], x["baseline"]) == (variant, baseline)), None)


def format_difference(row: dict[str, Any] | None) -> str:
    """Median and interval, e.g. ``"−137.5, −150 to −100"``; empty without a difference."""
    return "" if row is None else ", ".join(filter(None, [_signed(row["mean"]), _ends(row)]))


def _signed(steps: float) -> str:
    return f"{steps:+,g}".replace("-", "−") if steps else "0"


def _ends(row: dict[str, Any]) -> str:
    low, high = row["low"], row["high"]
    return "" if low is None else f"{_signed(low)} to {_signed(high)}"


def _difference_cell(row: dict[str, Any] | None) -> Cell:
    if row is None:
        return number_cell(MISSING)
    return number_cell(_signed(row["mean"]), note=_ends(row))


def committed_beside(study: Study, task: str) -> dict[str, Any] | None:
    """The committed study of the task; ``None`` if ``study`` is that study, or for another task."""
    committed: dict[str, Any] = read_json(RECALL)
    is_same = study.info.get("config_hash") == committed["config_hash"]
    return None if is_same or task != committed["task"] else committed


def answer_table(study: Study, task: str) -> Table:
    """Steps, accuracy and attention of the types and of the decisive control, one row each."""
    entry, every = task_results(study, task), models_of(study, task)
    models = {name: every[name] for name in (*study.types, UNIFORM) if name in every}
    with_attention = any("attention" in model for model in models.values())
    beside = committed_beside(study, task)
    rows = []
    for name, model in models.items():
        row = {"Model": type_cell(name), "Steps": _step_cell(model)}
        if beside is None:
            row["Minus Transformer"] = _difference_cell(find_difference(entry, name))
        accuracy = number(fmean(model["test_accuracy"]), 3)
        row["Accuracy"] = number_cell(accuracy, model["runs"])
        if with_attention:
            row |= {f"Net on {group}": _share_cell(model, "net", group) for group in KEY_GROUPS}
        if beside is not None:
            note = format_difference(find_difference(beside, name))
            steps = number_cell(beside["steps"].get(name, MISSING), note=note)
            row[f"Steps, {beside['seeds']} seeds"] = steps
        rows.append(row)
    caption = "Median step at which it is learned, with its range over seeds; test accuracy."
    if with_attention:
        caption += " Net: sum of the last layer's weights A or A₁ − λA₂; 0 on noise is best."
    if beside is not None:
        caption += " Last: published/recall, with the difference to the Transformer."
    return record_table(f"{caption} Intervals: 95 %.", rows)


def _share_cell(model: dict[str, Any], key: str, group: str) -> Cell:
    share = model.get("attention", {}).get(key, {}).get(group)
    return mean_cell(share, 2, model["runs"])


def share_table(study: Study, task: str) -> Table:
    """Weights of every map on every group of keys, for all models with attention."""
    models = {
        name: model
        for name, model in models_of(study, task).items()
        if "attention" in model and name not in NEVER_ATTEND
    }
    groups = next(iter(models.values()))["attention"]["map_1"]
    rows = [
        [type_cell(name), number_cell(title), *(_share_cell(model, key, g) for g in groups)]
        for name, model in models.items()
        for key, title in MAPS.items()
        if key in model["attention"]
    ]
    caption = (
        "Weights of the last layer at the queries, mean over heads and the test set. Net weight: "
        "sum of A₁ − λA₂, where noise of either sign cancels. Size: share of its absolute values, "
        "which noise keeps. Below each mean its interval over seeds."
    )
    return table(caption, ["Model", "Map", *(f"On {group}" for group in groups)], rows)


def results_table(study: Study, tasks: Sequence[str]) -> Table:
    """Steps of every type and control, with their differences and tests; one row each."""
    rows = []
    for task in tasks:
        entry = task_results(study, task)
        for name, model in models_of(study, task).items():
            runs, lead = model["runs"], find_difference(entry, name)
            accuracy = model["test_accuracy"]
            first = {} if len(tasks) == 1 else {"Task": word_cell(task_name(task))}
            rows.append(
                {
                    **first,
                    "Model": type_cell(name),
                    "Learning rate": number_cell(f"{model['learning_rate']:g}", runs),
                    "Learned by": number_cell(f"{model['solved']} of {model['trials']}", runs),
                    "Median step": _step_cell(model),
                    "Minus Transformer": _difference_cell(lead),
                    "p": number_cell(p_value((lead or {}).get("p_holm"))),
                    "Minus DIFF V1": _difference_cell(find_difference(entry, name, V1)),
                    "Test accuracy": number_cell(span(min(accuracy), max(accuracy), 3), runs),
                }
            )
    goal = study.info["tasks"][tasks[0]].get("solved_accuracy", MISSING)
    caption = (
        f"{listing(map(task_name, tasks))}. Learned: validation accuracy {goal} at two evaluations "
        "in a row. Differences in steps: median by seed and its interval; a run that never learned "
        "it counts as all steps later. p: log-rank test of a type, adjusted by Holm."
    )
    return record_table(caption, rows)


def trials_table(study: Study, task: str) -> Table:
    """Steps and test accuracy of every trial of a task, and the runs of the learning-rate sweep."""
    rows = []
    for name, model in models_of(study, task).items():
        trials = [
            {"learning_rate": model["learning_rate"], "run": run, "solved_step": solved}
            | {"steps": steps, "accuracy": accuracy}
            for run, solved, steps, accuracy in zip(
                *(model[x] for x in ("runs", "solved_steps", "steps", "test_accuracy")),
                strict=True,
            )
        ]
        for run in [*trials, *model.get("sweep", ())]:
            solved, loss = run["solved_step"], run.get("validation_loss")
            learned = f"not in {count(run['steps'])}" if solved is None else count(solved)
            rows.append(
                {
                    "Model": type_cell(name),
                    "Run": word_cell(run["run"]),
                    "Learning rate": number_cell(f"{run['learning_rate']:g}"),
                    "Learned at step": number_cell(learned),
                    "Test accuracy": number_cell(number(run.get("accuracy"), 3)),
                    "Validation loss": number_cell(number(loss, 3)),
                }
            )
    caption = (
        "Every trial, with test accuracy, and every run of the sweep, with validation loss. Chosen "
        "rate: most runs solved, then fewest steps, then smallest validation loss. A sweep whose "
        "best rate was at its edge was extended."
    )
    return record_table(caption, rows)


def settings_sentence(task: str, settings: dict[str, Any]) -> str:
    """A task, the length of its training, and its models."""
    train, model, asked = (settings.get(x, {}) for x in ("train", "model", "task"))
    asked = {name: round(x, 3) if isinstance(x, float) else x for name, x in asked.items()}
    sequences = count(train["batch_tokens"] // train["seq_len"])
    layers, width = count(model.get("num_hidden_layers")), count(model.get("hidden_size"))
    return (
        f"{task_name(task)}: {pairs(asked)}. Trained at most {count(train.get('num_steps'))} steps "
        f"of {sequences} sequences of {train['seq_len']} tokens; models of {layers} layers and "
        f"{width} channels."
    )


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
    return Chart(
        element_id=element_id,
        traces=traces,
        look=layout("training step", "share of queries answered", yaxis={"range": [0, 1.03]}),
        caption="Accuracy on held-out sequences: mean over seeds, with the band of all seeds.",
        runs=runs_sentence(used),
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


def share_chart(study: Study, task: str, element_id: str) -> Chart | None:
    """Weights on the answer and on noise of the Transformer, V1 and the uniform second map."""
    models = models_of(study, task)
    bars = [
        (f"{type_name(name)}: {MAPS[key].lower()}", models[name], key)
        for name, key in (
            (BASELINE, "net"),
            (V1, "map_1"),
            (V1, "map_2"),
            (V1, "net"),
            (UNIFORM, "map_2"),
            (UNIFORM, "net"),
        )
        if "attention" in models.get(name, {})
    ]
    if not bars:
        return None
    colors = {"answer": "#009e73", "noise": "#999999"}
    traces = []
    for group, words in KEY_GROUPS.items():
        shares = [model["attention"][key][group] for _, model, key in bars]
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
    runs = [run for _, model, _ in bars for run in model["runs"]]
    axis = {"autorange": "reversed"}
    return Chart(
        element_id=element_id,
        traces=traces,
        look=layout("sum of weights", "", yaxis=axis, barmode="group"),
        caption="Weights on the answer and on noise: mean over seeds and its interval. The uniform "
        "map of the control shows the weight that noise gets by chance.",
        runs=runs_sentence(dict.fromkeys(runs)),
    )
