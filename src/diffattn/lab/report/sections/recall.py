"""The page of a recall study: learning curves, solved shares, controls and guessing ceilings."""

from collections.abc import Iterable, Sequence
from dataclasses import replace
from itertools import cycle
from pathlib import Path
from typing import Any

from diffattn.errors import CheckpointError
from diffattn.lab.report.page.charts import Chart, layout, line, names_of
from diffattn.lab.report.page.committed import claims_section
from diffattn.lab.report.page.elements import (
    Bullets,
    Document,
    Element,
    Fold,
    Pair,
    Part,
    Section,
    Text,
)
from diffattn.lab.report.page.maps import attention_maps
from diffattn.lab.report.page.provenance import provenance, statement
from diffattn.lab.report.page.run_tables import cost_sentence, cost_table, models_table
from diffattn.lab.report.page.runs import (
    BASELINE,
    Study,
    StudyRun,
    read_versioned,
    runs_by_name,
    study_of_runs,
)
from diffattn.lab.report.page.study_page import (
    TIMES,
    read_info,
    read_results,
    unfinished,
)
from diffattn.lab.report.page.tables import Table
from diffattn.lab.report.page.wording import listing, number, plural, type_name
from diffattn.lab.report.sections import recall_answers as answers
from diffattn.lab.report.sections import recall_tables as tables

VERSION = 5
"""Version of the protocol ``recall_study`` whose records are shown. A control that names itself as
the model whose rate it uses has a sweep and all seeds: every control that attends."""
_CONTROL_COLORS = ("#999999", "#e69f00", "#cc79a7", "#56b4e9", "#0072b2", "#d55e00")
_CEILING_COLORS = ("#999999", "#cc79a7", "#e69f00")


def read_recall_study(folder: Path) -> Study:
    """Read the records of a recall study. All but ``study.json`` may be missing.

    Returns:
        The study, its trials first and then its sweep, each in the order they are made.

    Raises:
        CheckpointError: A file is damaged, of another schema version or of another version of the
            protocol.
    """
    results = read_results(folder)
    if results is not None and (version := results["protocol"].get("version")) != VERSION:
        raise CheckpointError(
            f"{folder / 'results.json'}: the protocol's version must be {VERSION}, got "
            f"{version!r:.60}. Run the study again in another folder."
        )
    info, runs = read_info(folder), runs_by_name(folder)
    info["swept"] = _sweep_runs(info, results, runs)
    study = study_of_runs(
        info | {"config": info["tasks"]},
        runs,
        [*trial_names(info), *info["swept"]],
        results,
        missing="nothing is counted",
    )
    maps = folder / "maps.json"
    return replace(study, maps=read_versioned(maps)) if maps.exists() else study


def trial_names(
    info: dict[str, Any], task: str | None = None, names: Sequence[str] | None = None
) -> list[str]:
    """Names of the runs that count, of one task or of all, of some models or of all."""
    swept = tables.swept_models(info)
    models = [*info["types"], *info["controls"]] if names is None else names
    return [
        f"{task_id}-{name}-seed{seed}"
        for task_id in ([task] if task else info["tasks"])
        for name in models
        for seed in info["seeds"][: None if name in swept else info["control_seeds"]]
    ]


def _sweep_runs(
    info: dict[str, Any], results: dict[str, Any] | None, runs: Iterable[str]
) -> list[str]:
    """Names of the runs of the sweep: those planned, those counted, those in the folder."""
    names: dict[str, None] = {}
    planned = info["learning_rates"] if len(info["learning_rates"]) > 1 else []
    for task in info["tasks"]:
        for model in tables.swept_models(info):
            entry = results["tasks"][task] if results else {"types": {}, "controls": {}}
            counted = {**entry["types"], **entry["controls"]}.get(model, {}).get("sweep", ())
            names |= dict.fromkeys(
                f"{task}-{model}-lr{rate:g}-seed{seed}"
                for rate in planned
                for seed in info["sweep_seeds"]
            )
            names |= dict.fromkeys(run["run"] for run in counted)
            names |= dict.fromkeys(name for name in runs if name.startswith(f"{task}-{model}-lr"))
    return list(names)


def recall_document(
    study: Study,
    claims: Table | None = None,
    loss: Sequence[Element] = (),
    origins: Sequence[Element] = (),
    title: str = "",
) -> Document:
    """Assemble the page: one sentence, one figure, one table; then a section per question.

    Args:
        study: Study that the page is of.
        claims: What committed records say of the papers' claims.
        loss: What studies on text say.
        origins: Where their numbers come from.
        title: Of the page. Default: the study's.
    """
    info, tasks, results = study.info, study.info["tasks"], study.results
    first = next(iter(tasks))
    chart = answers.learning_chart(study, first, "chart-learning")
    answer: list[Element] = [] if chart is None else [chart]
    lead = unfinished("counted")
    if results is not None:
        lead = [Text(answers.answer_sentence(study, first), "verdict")]
        answer.append(answers.answer_table(study, first))
    lead += [Pair(answer, "answer"), Bullets(study.gaps, "What is missing", "gap")]
    sooner: list[Element] = []
    for task in tasks:
        elements = _results(study, task)
        sooner += elements if len(tasks) == 1 else [Part(tables.task_name(task), elements)]
    sections = [
        Section("results", "Does it retrieve sooner?", sooner),
        Section("maps", "What does the second map do?", _maps(study, first)),
        Section("loss", "Is the loss lower?", loss),
        Section("costs", "What does it cost?", _costs(study)),
        claims_section(claims),
        Section("provenance", "Where do the numbers come from?", [*provenance(study), *origins]),
    ]
    return Document(
        title=title or f"Differential attention: recall “{info.get('scale')}”",
        lead=lead,
        sections=[section for section in sections if section.content],
        summary=tables.summary_table(study) if results else None,
    )


def _comparison(info: dict[str, Any]) -> str:
    """The models that are compared, their data and their learning rates."""
    names = listing(type_name(name) for name in info["types"])
    seeds = plural(len(info["seeds"]), "seed")
    if info.get("member_rates"):
        rates = "each at the learning rate that the longer study in published/recall chose"
    elif len(info["learning_rates"]) == 1:
        rates = "all at one learning rate"
    else:
        sweep = plural(len(info["sweep_seeds"]), "other seed")
        rates = f"each at the learning rate that was chosen for it before, on {sweep}"
    return (
        f"Compared: models that are alike but for their attention ({names}), trained from scratch "
        "to recall values by their keys. All read the same new sequences at the same seed and "
        f"step. {seeds} per model and task count, {rates}. Controls are the same models with one "
        "part changed."
    )


def _results(study: Study, task: str) -> list[Element]:
    if study.results is None:
        return unfinished("counted")
    entry = study.results["tasks"][task]
    details: list[Element] = [
        tables.solved_table(study, task),
        Text(_comparison(study.info)),
        Text(statement(study)),
        Text(
            f"Accuracy that needs no recall: {tables.ceilings_in_words(entry['ceilings'])}. The "
            "last would need the answers given so far, which these sequences do not show: it "
            "bounds every way of guessing."
        ),
        tables.settings_table(study),
        accuracy_chart(study, task, trial_names(study.info, task, study.types), f"chart-{task}"),
        tables.by_query_table(study, task),
        tables.trials_table(study, task),
        *_sweep(study, task),
    ]
    controls: list[Element] = []
    if entry["controls"]:
        controls = [
            tables.controls_table(study, task),
            control_chart(study, task, f"chart-controls-{task}"),
            tables.control_tests_table(study, task),
        ]
    return [
        Bullets(
            [
                entry["can"]["sentence"],
                *answers.sooner_sentences(study, task),
                tables.leak_in_words(entry["leak"]),
            ]
        ),
        Fold("Controls and tests", [tables.tests_table(study, task), *controls]),
        Fold("How we know", details),
    ]


def _maps(study: Study, task: str) -> list[Element]:
    """Shares of attention, and the maps of one example; nothing without records of them."""
    if study.results is None or answers.share_chart(study, task, "") is None:
        return []
    chart = answers.share_chart(study, task, "chart-shares")
    assert chart is not None, "it was made a line above"
    first = [name for name in (BASELINE, answers.V1) if name in study.types]
    rest = [name for name in study.types if name not in first]
    maps, others = (
        attention_maps(
            replace(study, info=study.info | {"types": names}), prefix, in_one_row=names == first
        )
        for names, prefix in ((first, "map-"), (rest, "map-other-"))
    )
    table = answers.share_table(study, task)
    sentence = answers.weights_sentence(study, task)
    lead: list[Element] = [Text(sentence)] if sentence else []
    return [*lead, chart, *maps, Fold("Every map and group of keys", [table, *others])]


def _costs(study: Study) -> list[Element]:
    """Speed and memory of every task, and in a fold the sizes of the models."""
    costs: list[Element] = []
    sizes: list[Element] = []
    for task in study.info["tasks"]:
        trials = trial_names(study.info, task, study.types)
        if sentence := cost_sentence(_only(study, trials)):
            costs.append(Text(sentence))
        costs.append(_with_task(task, cost_table(_only(study, trials))))
        # One run per type: the sizes of its models are those of all.
        one_seed = {**study.info, "seeds": study.info["seeds"][:1]}
        first_runs = trial_names(one_seed, task, study.types)
        sizes.append(_with_task(task, models_table(_only(study, first_runs))))
    return [
        *costs,
        Fold("Sizes of the models", sizes),
        Text(f"A run ends when the task is learned. {TIMES}", "remark"),
    ]


def _sweep(study: Study, task: str) -> list[Element]:
    swept = tables.sweep_table(study, task)
    if swept is None:
        return []
    names = [name for name in study.info["swept"] if name.startswith(f"{task}-")]
    return [swept, accuracy_chart(study, task, names, f"chart-sweep-{task}")]


def _only(study: Study, names: Sequence[str]) -> Study:
    """The same study with these runs only."""
    return replace(study, runs=tuple(run for run in study.runs if run.name in names))


def _with_task(task: str, values: Table) -> Table:
    """Name the task in a caption."""
    return replace(values, caption=f"{tables.task_name(task)}. {values.caption}")


def accuracy_chart(study: Study, task: str, names: list[str], element_id: str) -> Chart | Text:
    """Draw validation accuracy over training, one line per run, with the guessing ceilings.

    Args:
        study: Study whose runs are drawn.
        task: Name of the task, a key of ``study.json``.
        names: The runs to draw.
        element_id: Id of the element, unique in the page.

    Returns:
        The chart, or a sentence if no run recorded an accuracy.
    """
    groups = {
        name: [run for run in _only(study, names).runs if run.name.startswith(f"{task}-{name}-")]
        for name in tables.swept_models(study.info)
    }
    return _chart(study, task, groups, element_id, "accuracy over training steps, one line per run")


def control_chart(study: Study, task: str, element_id: str) -> Chart | Text:
    """Draw the same for the controls."""
    groups = {
        name: list(_only(study, trial_names(study.info, task, [name])).runs)
        for name in study.info["controls"]
    }
    label = "accuracy of the controls over training steps, one line per run"
    return _chart(study, task, groups, element_id, label)


def _chart(
    study: Study, task: str, groups: dict[str, list[StudyRun]], element_id: str, label: str
) -> Chart | Text:
    traces: list[dict[str, Any]] = []
    names = []
    colors = dict(zip(study.info["controls"], cycle(_CONTROL_COLORS), strict=False))
    for name, runs in groups.items():
        in_legend = False
        for run in runs:
            curve = run.series("accuracy")
            if not curve:
                continue
            names.append(run.name)
            trace = line(curve, name, run.name, color=colors.get(name))
            trace |= {"mode": "lines", "showlegend": not in_legend}
            trace["line"]["width"] = 1.8
            traces.append(trace)
            in_legend = True
    if not names:
        return Text("No run recorded an accuracy.", "gap")
    last = max(trace["x"][-1] for trace in traces)
    title = tables.task_name(task)
    return Chart(
        element_id=element_id,
        traces=[*traces, *_ceilings(study, task, last)],
        look=layout("training step", "share of queries answered", yaxis={"range": [0, 1.03]}),
        caption=f"{title}: accuracy on the validation set, one line per run. A line that "
        "ends early was solved there. Dotted: accuracy of guessing.",
        runs=names_of(names),
        height=420,
        label=f"{title}: {label}",
    )


def _ceilings(study: Study, task: str, last: float) -> list[dict[str, Any]]:
    """Draw a dotted line per ceiling; equal ceilings share a line."""
    by_value: dict[float, list[str]] = {}
    ceilings = study.results["tasks"][task]["ceilings"] if study.results else {}
    for name, value in ceilings.items():
        by_value.setdefault(value, []).append(tables.CEILING_NAMES.get(name, name))
    traces = []
    for color, (value, names) in zip(_CEILING_COLORS, by_value.items(), strict=False):
        # Short: a long entry of a legend is cut off on a phone. The page lists what each one is.
        group, label = f"guess: {number(value, 3)}", ", or ".join(names)
        trace = line([(0, value), (last, value)], group, label, dotted=True, color=color)
        traces.append({**trace, "showlegend": True})
    return traces
