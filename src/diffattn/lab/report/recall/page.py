"""What the page of a recall study shows, as plain values."""

from collections.abc import Callable
from dataclasses import replace
from itertools import cycle
from typing import Any

from diffattn.lab.report.page.charts import Chart, layout, line, names_of
from diffattn.lab.report.page.provenance import provenance, statement
from diffattn.lab.report.page.run_tables import cost_table, models_table
from diffattn.lab.report.page.runs import Study, StudyRun
from diffattn.lab.report.page.tables import Table
from diffattn.lab.report.page.wording import listing, number, plural, type_name
from diffattn.lab.report.recall.files import part, sweep_names, swept_members, trial_names
from diffattn.lab.report.recall.tables import (
    CEILING_NAMES,
    by_query_table,
    ceilings_in_words,
    control_tests_table,
    controls_table,
    leak_in_words,
    settings_table,
    solved_table,
    start_table,
    sweep_table,
    task_name,
    tests_table,
    trials_table,
)

CHAPTERS = {
    "models": "Models and tasks",
    "results": "Results",
    "rates": "Learning rates",
    "costs": "Speed and memory",
    "benchmarks": "Benchmarks",
    "provenance": "Provenance",
}
_CONTROL_COLORS = ("#999999", "#e69f00", "#cc79a7", "#56b4e9", "#0072b2", "#d55e00")
_CEILING_COLORS = ("#999999", "#cc79a7", "#e69f00")


def recall_page(study: Study) -> dict[str, Any]:
    """Every section of the page, as the template names them.

    Args:
        study: From :func:`diffattn.lab.report.recall.files.read_recall_study`.
    """
    info = study.info
    names = listing(type_name(name) for name in study.types)
    lead = (
        f"Compared: models that are alike but for their attention ({names}), trained from scratch "
        "to recall values by their keys. All types read the same new sequences at the same seed "
        f"and step. {plural(len(info['seeds']), 'seed')} per type and task count{_rates(info)}. "
        "Beside them stand controls: the same models with one thing changed."
    )
    return {
        "lead": lead,
        "statement": statement(study),
        "gaps": study.gaps,
        "settings": settings_table(study),
        "tasks": [_task(study, task) for task in info["tasks"]],
        "provenance": provenance(study),
    }


def _rates(info: dict[str, Any]) -> str:
    if len(info["learning_rates"]) == 1:
        return ", all at one learning rate"
    others = plural(len(info["sweep_seeds"]), "other seed")
    more = len(swept_members(info)) > len(info["types"])
    whose = "type and of each control that attends" if more else "type"
    return f"; the learning rate of each {whose} was chosen before, on {others}"


def _task(study: Study, task: str) -> dict[str, Any]:
    """One task; ``counts`` is ``None`` while the study has not finished."""
    types, controls = study.types, list(study.info["controls"])
    trials = trial_names(study.info, task, types)
    # One run per type: the sizes of its models are those of all.
    first_seed = trial_names({**study.info, "seeds": study.info["seeds"][:1]}, task, types)
    counts = None
    if study.results is not None:
        entry = study.results["tasks"][task]
        counts = {
            "claims": [
                ("Can it be learned?", entry["can"]["sentence"]),
                ("Is it learned sooner?", entry["sooner"]["sentence"]),
            ],
            "leak": leak_in_words(entry["leak"]),
            "controls": controls_table(study, task) if controls else None,
            "control_tests": control_tests_table(study, task) if controls else None,
            "start": start_table(study, task),
            "solved": solved_table(study, task),
            "ceilings": ceilings_in_words(study.results["tasks"][task]["ceilings"]),
            "trials": trials_table(study, task),
            "by_query": by_query_table(study, task),
            "tests": tests_table(study, task),
            "sweep": sweep_table(study, task),
        }
    return {
        "name": task_name(task),
        "models": _of_task(task, models_table, part(study, first_seed)),
        "accuracy": accuracy_chart(study, task, trials, f"chart-{task}"),
        "control_accuracy": control_chart(study, task, f"chart-controls-{task}"),
        "sweep_accuracy": accuracy_chart(
            study, task, sweep_names(study.info, task), f"chart-sweep-{task}"
        ),
        "costs": _of_task(task, cost_table, part(study, trials)),
        "counts": counts,
    }


def _of_task(task: str, make: Callable[[Study], Table], study: Study) -> Table:
    """A table of a part of a study, its task named in its caption."""
    whole = make(study)
    return replace(whole, caption=f"{task_name(task)}. {whole.caption}")


def accuracy_chart(study: Study, task: str, names: list[str], element_id: str) -> Chart | str:
    """Validation accuracy over training, one line per run, with the guessing ceilings.

    Args:
        study: The study.
        task: Its task.
        names: The runs to draw.
        element_id: Id of the element, unique in the page.

    Returns:
        The chart, or a sentence if no run recorded an accuracy.
    """
    drawn = part(study, names).runs
    groups = {
        name: [run for run in drawn if run.name.startswith(f"{task}-{name}-")]
        for name in swept_members(study.info)
    }
    return _chart(study, task, groups, element_id, "accuracy over training steps, one line per run")


def control_chart(study: Study, task: str, element_id: str) -> Chart | str:
    """The same of the controls."""
    groups = {
        name: list(part(study, trial_names(study.info, task, [name])).runs)
        for name in study.info["controls"]
    }
    label = "accuracy of the controls over training steps, one line per run"
    return _chart(study, task, groups, element_id, label)


def _chart(
    study: Study, task: str, groups: dict[str, list[StudyRun]], element_id: str, label: str
) -> Chart | str:
    traces: list[dict[str, Any]] = []
    used = []
    colors = dict(zip(study.info["controls"], cycle(_CONTROL_COLORS), strict=False))
    for name, runs in groups.items():
        in_legend = False
        for run in runs:
            curve = run.series("accuracy")
            if not curve:
                continue
            used.append(run.name)
            trace = line(curve, name, run.name, color=colors.get(name))
            trace |= {"mode": "lines", "showlegend": not in_legend}
            trace["line"]["width"] = 1.8
            traces.append(trace)
            in_legend = True
    if not used:
        return "No run recorded an accuracy."
    last = max(trace["x"][-1] for trace in traces)
    traces += _ceilings(study, task, last)
    return Chart(
        element_id=element_id,
        traces=traces,
        look=layout("training step", "share of queries answered", yaxis={"range": [0, 1.03]}),
        caption=f"{task_name(task)}: accuracy on the validation set, one line per run. A line that "
        "ends early was solved there. Dotted: what guessing reaches.",
        runs=names_of(used),
        height=420,
        label=f"{task_name(task)}: {label}",
    )


def _ceilings(study: Study, task: str, last: float) -> list[dict[str, Any]]:
    """A dotted line per ceiling; equal ones share theirs."""
    by_value: dict[float, list[str]] = {}
    ceilings = study.results["tasks"][task]["ceilings"] if study.results else {}
    for name, value in ceilings.items():
        by_value.setdefault(value, []).append(CEILING_NAMES.get(name, name))
    traces = []
    for color, (value, names) in zip(_CEILING_COLORS, by_value.items(), strict=False):
        # Short: a long entry of a legend is cut off on a phone. The page lists what each one is.
        group, label = f"guess: {number(value, 3)}", ", or ".join(names)
        trace = line([(0, value), (last, value)], group, label, dotted=True, color=color)
        traces.append({**trace, "showlegend": True})
    return traces
