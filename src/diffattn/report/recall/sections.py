"""The report of a recall study: learning curves, solved shares, ceilings."""

from collections.abc import Callable
from typing import Any

from diffattn.report.page.charts import embed, layout, line, names_of, series
from diffattn.report.page.provenance import provenance
from diffattn.report.page.wording import esc, listing, number, plural, type_name
from diffattn.report.recall.files import part, sweep_names, trial_names
from diffattn.report.recall.tables import (
    CEILING_NAMES,
    brief_names,
    by_query_table,
    ceilings_in_words,
    settings_table,
    solved_table,
    sweep_table,
    task_name,
    tests_table,
    trials_table,
    unfinished_note,
)
from diffattn.report.study.files import Study
from diffattn.report.study.tables import cost_table, models_table

CHAPTERS = {
    "models": "Models and tasks",
    "results": "Results",
    "rates": "Learning rates",
    "costs": "Speed and memory",
    "benchmarks": "Benchmarks",
    "provenance": "Provenance",
}
_CEILING_COLORS = ("#999999", "#cc79a7", "#e69f00")


def recall_sections(study: Study) -> str:
    """Every section of the page.

    Args:
        study: From :func:`diffattn.report.recall.files.read_recall_study`.
    """
    sections = {
        "models": settings_table(study) + _per_task(_first_seed(study), models_table),
        "results": "".join(_task(study, task) for task in study.info["tasks"]),
        "rates": _rates(study),
        "costs": _costs(study),
        "provenance": provenance(study),
    }
    return _headline(study) + "".join(
        f'<section id="{key}">\n<h2>{CHAPTERS[key]}</h2>\n{body}</section>\n'
        for key, body in sections.items()
    )


def accuracy_chart(study: Study, task: str, names: list[str], element_id: str) -> str:
    """Validation accuracy over training, one line per run, with the guessing ceilings.

    Args:
        study: The study.
        task: Its task.
        names: The runs to draw.
        element_id: Id of the element, unique in the page.

    Returns:
        HTML; a note instead of a chart if no run recorded an accuracy.
    """
    traces: list[dict[str, Any]] = []
    used = []
    for name in study.types:
        shown = False
        for run in part(study, names).runs_of(name):
            curve = series(run, "accuracy")
            if not curve:
                continue
            used.append(run.name)
            traces.append({**line(curve, name, run.name), "mode": "lines", "showlegend": not shown})
            traces[-1]["line"]["width"] = 1.8
            shown = True
    if not used:
        return '<p class="gap">No run recorded an accuracy.</p>\n'
    last = max(trace["x"][-1] for trace in traces)
    traces += _ceilings(study, task, last)
    caption = (
        f"{esc(task_name(task))}: accuracy on the validation set, one line per run. A line that "
        "ends early was solved there. Dotted: what guessing reaches. "
    )
    return embed(
        traces,
        layout("training step", "share of queries answered", yaxis={"range": [0, 1.03]}),
        element_id,
        caption + names_of(brief_names(used)),
        height=420,
        label=f"{task_name(task)}: accuracy over training steps, one line per run",
    )


def _ceilings(study: Study, task: str, last: float) -> list[dict[str, Any]]:
    """A dotted line per ceiling; equal ones share theirs."""
    by_value: dict[float, list[str]] = {}
    ceilings = study.results["tasks"][task]["ceilings"] if study.results else {}
    for name, value in ceilings.items():
        by_value.setdefault(value, []).append(CEILING_NAMES.get(name, name))
    traces = []
    for color, (value, names) in zip(_CEILING_COLORS, by_value.items(), strict=False):
        group = f"guess: {', or '.join(names)}"
        label = f"guessing ceiling {number(value, 3)}"
        trace = line([(0, value), (last, value)], group, label, dotted=True, color=color)
        traces.append({**trace, "showlegend": True})
    return traces


def _headline(study: Study) -> str:
    info = study.info
    names = listing(type_name(name) for name in study.types)
    text = (
        f"Compared: models that are alike but for their attention ({names}), trained from scratch "
        "to recall values by their keys. All types read the same new sequences at the same seed "
        f"and step. {plural(len(info['seeds']), 'seed')} per type and task count; the learning "
        f"rate was chosen before, on {plural(len(info['sweep_seeds']), 'other seed')}."
    )
    statement = "The study has not finished, so it makes no statement."
    if study.results is not None:
        statement = study.results["statement"]
    gaps = "".join(f"<li>{esc(gap)}</li>" for gap in study.gaps)
    missing = f'<div class="gap"><strong>What is missing</strong><ul>{gaps}</ul></div>\n'
    return (
        f'<p class="lead">{esc(text)}</p>\n<p class="statement">{esc(statement)}</p>\n'
        f"{missing if gaps else ''}"
    )


def _task(study: Study, task: str) -> str:
    chart = accuracy_chart(study, task, trial_names(study.info, task), f"chart-{task}")
    parts = [f"<h3>{esc(task_name(task))}</h3>\n"]
    if study.results is None:
        return "".join([*parts, unfinished_note(), chart])
    ceilings = ceilings_in_words(study.results["tasks"][task]["ceilings"])
    words = (
        f"<p>Accuracy that needs no recall: {esc(ceilings)}. The last would need the answers given "
        "so far, which these sequences do not show: it bounds every way of guessing.</p>\n"
    )
    every = f"<details><summary>Every trial</summary>\n{trials_table(study, task)}</details>\n"
    parts += [solved_table(study, task), words, chart, every]
    return "".join([*parts, by_query_table(study, task), tests_table(study, task)])


def _rates(study: Study) -> str:
    parts = []
    for task in study.info["tasks"]:
        if study.results is not None:
            parts.append(sweep_table(study, task))
        names = sweep_names(study.info, task)
        parts.append(accuracy_chart(study, task, names, f"chart-sweep-{task}"))
    return "".join(parts)


def _costs(study: Study) -> str:
    note = (
        "<p>Times depend on the machine and on what else it was doing. Where all runs were made in "
        "one process, peak memory is that of the process so far and compares nothing.</p>\n"
    )
    return _per_task(study, cost_table) + note


def _first_seed(study: Study) -> Study:
    """One run per task and type: the sizes of its models are those of all."""
    return part(study, trial_names({**study.info, "seeds": study.info["seeds"][:1]}))


def _per_task(study: Study, make: Callable[[Study], str]) -> str:
    """A table of the trials of every task, each named in its caption."""
    return "".join(
        make(part(study, trial_names(study.info, task))).replace(
            "<caption>", f"<caption>{esc(task_name(task))}. ", 1
        )
        for task in study.info["tasks"]
    )
