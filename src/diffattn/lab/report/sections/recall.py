"""The page of a recall study: steps until models learn the task, attention, and costs."""

from collections.abc import Collection, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from diffattn.errors import CheckpointError
from diffattn.lab.catalog.models import BASELINE
from diffattn.lab.report.page.elements import (
    Bullets,
    Document,
    Element,
    Fold,
    Pair,
    Part,
    Section,
    Text,
    shown,
)
from diffattn.lab.report.page.maps import attention_maps
from diffattn.lab.report.page.run_tables import cost_table, models_table
from diffattn.lab.report.page.runs import Study, read_study_of_runs
from diffattn.lab.report.page.study_page import (
    TIMES,
    UNFINISHED,
    claims_section,
    provenance,
    statement,
)
from diffattn.lab.report.page.tables import Table
from diffattn.lab.report.page.wording import listing, number, p_value, plural, type_name
from diffattn.lab.report.sections import recall_tables as tables
from diffattn.lab.report.sections.recall_tables import (
    UNIFORM,
    V1,
    committed_beside,
    find_difference,
    format_difference,
    median_step,
    models_of,
    task_results,
)

VERSION = 6
"""Version of the protocol ``recall_study`` whose records are shown."""


def read_recall_study(folder: Path) -> Study:
    """Read the records of a recall study: its trials first and then its sweep."""
    study = read_study_of_runs(folder, runs_of_recall)
    version = (study.results or {"protocol": {"version": VERSION}})["protocol"].get("version")
    if version != VERSION:
        raise CheckpointError(
            f"{folder / 'results.json'}: the protocol's version must be {VERSION}, got "
            f"{version!r:.60}. Run the study again in another folder."
        )
    return study


def runs_of_recall(info: dict[str, Any], names: Collection[str], _: Any) -> list[str]:
    """Names of a study's runs: its trials, then its sweep."""
    return [*_trial_names(info), *_sweep_names(info, names)]


def _trial_names(
    info: dict[str, Any], task: str | None = None, names: Sequence[str] | None = None
) -> list[str]:
    """Names of the trials, for one task or all, and for some models (``names``) or all."""
    swept = tables.swept_models(info)
    models = [*info["types"], *info["controls"]] if names is None else names
    return [
        f"{task_id}-{name}-seed{seed}"
        for task_id in ([task] if task else info["tasks"])
        for name in models
        for seed in info["seeds"][: None if name in swept else info["control_seeds"]]
    ]


def _sweep_names(info: dict[str, Any], names: Collection[str]) -> list[str]:
    swept: dict[str, None] = {}
    rates = info["learning_rates"] if len(info["learning_rates"]) > 1 else []
    for begins in (f"{task}-{x}-lr" for task in info["tasks"] for x in tables.swept_models(info)):
        planned = (f"{begins}{rate:g}-seed{seed}" for rate in rates for seed in info["sweep_seeds"])
        swept |= dict.fromkeys((*planned, *(name for name in names if name.startswith(begins))))
    return list(swept)


def recall_document(
    study: Study,
    claims: Table | None = None,
    loss: Sequence[Element] = (),
    origins: Sequence[Element] = (),
    title: str = "",
) -> Document:
    """Assemble the page: one sentence, one figure, one table; then a section per question.

    ``loss``: elements from studies on text; ``origins``: their provenance.
    """
    info, names, results = study.info, list(study.info["tasks"]), study.results
    answer = shown(tables.learning_chart(study, names[0], "chart-learning"))
    lead = UNFINISHED
    sooner: list[Element] = []
    maps: list[Element] = []
    if results is not None:
        lead = Text(_answer_sentence(study, names[0]), "verdict")
        answer.append(tables.answer_table(study, names[0]))
        parts = {task: _results(study, task) for task in names}
        sooner = [Part(tables.task_name(task), elements) for task, elements in parts.items()]
        sooner = sooner if len(names) > 1 else parts[names[0]]
        maps = _maps(study, names[0])
    sections = [
        Section("results", "Does it retrieve sooner?", sooner),
        Section("maps", "What does the second map do?", maps),
        Section("loss", "Is the loss lower?", loss),
        Section("costs", "What does it cost?", _costs(study)),
        claims_section(claims),
        Section("provenance", "Where do the numbers come from?", [*provenance(study), *origins]),
    ]
    return Document(
        title=title or f"Differential attention: recall “{info.get('scale')}”",
        lead=[lead, Pair(answer, "answer"), Bullets(study.gaps, "What is missing", "gap")],
        sections=[section for section in sections if section.content],
        summary=tables.results_table(study, names) if results else None,
    )


def _results(study: Study, task: str) -> list[Element]:
    ceilings = ", ".join(
        f"{tables.CEILING_NAMES.get(name, name)} {number(value, 3)}"
        for name, value in task_results(study, task)["ceilings"].items()
    )
    details = shown(
        Text(_comparison(study.info)),
        Text(statement(study)),
        Text(
            f"Accuracy that needs no recall: {ceilings}. The last would need the answers given so "
            "far, which these sequences do not show: it bounds every way of guessing."
        ),
        Text(tables.settings_sentence(task, study.info["tasks"][task])),
        Fold("Every run", [tables.trials_table(study, task)]),
    )
    return [
        Bullets(_sentences(study, task)),
        Fold("Every model and control", [tables.results_table(study, [task])]),
        Fold("How we know", details),
    ]


def _comparison(info: dict[str, Any]) -> str:
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


def _answer_sentence(study: Study, task: str) -> str:
    entry, models = task_results(study, task), models_of(study, task)
    if entry["uninformative"]:
        return f"Uninformative: {entry['uninformative']}"
    seeds = len(models[V1]["runs"])
    spread = f"medians of {seeds} seeds; " if seeds > 1 else "one seed; "
    words = (
        "DIFF V1 learns to find a value among noise in "
        f"{median_step(models[V1])} training steps, the Transformer in "
        f"{median_step(models[BASELINE])} ({spread}difference by seed "
        f"{format_difference(find_difference(entry, V1))})."
    )
    if beside := committed_beside(study, task):
        lead, control = find_difference(beside, V1), find_difference(beside, UNIFORM, V1)
        words += (
            f" The longer study of {beside['seeds']} seeds has {beside['steps'][V1]} and "
            f"{beside['steps'][BASELINE]} (by seed {format_difference(lead)}), and "
            f"{beside['steps'][UNIFORM]} for a V1 whose second map is uniform, and so sees nothing "
            f"(to V1 {format_difference(control)})."
        )
    elif UNIFORM in models:
        words += (
            " A V1 whose second map is uniform, and so sees nothing, needs "
            f"{median_step(models[UNIFORM])} (to V1 by seed "
            f"{format_difference(find_difference(entry, UNIFORM, V1))})."
        )
    return words


def _sentences(study: Study, task: str) -> list[str]:
    entry, models = task_results(study, task), models_of(study, task)
    if entry["uninformative"]:
        items = [f"Uninformative: {entry['uninformative']}"]
    else:
        every = [
            x for name in study.info["tasks"] for x in task_results(study, name)["differences"]
        ]
        tests = [row for row in every if "p" in row]
        level = "" if tests[0]["low"] is None else f", its {100 * tests[0]['level']:.0f} % interval"
        types = listing(
            f"{type_name(row['variant'])} {median_step(models[row['variant']])} "
            f"({format_difference(row)}; p {p_value(row['p_holm'])})"
            for row in entry["differences"]
            if "p" in row
        )
        base = median_step(models[BASELINE])
        items = [
            f"Median step at which it is learned: the Transformer {base}, {types}. In brackets: "
            f"the median difference to the Transformer by seed{level} and p of the log-rank test "
            f"after Holm over {plural(len(tests), 'test')}."
        ]
    leak = entry["leak"]
    return [
        *items,
        f"The task {'leaks' if leak['leaks'] else 'does not leak'}: a model that sees no other "
        f"token answers {number(leak['highest'], 3)}; by guessing up to "
        f"{number(leak['limit'], 3)} would be chance.",
        *(
            f"The chosen learning rate of {type_name(name)} lies at the edge of its sweep."
            for name, model in models.items()
            if model.get("inside") is False
        ),
    ]


def _maps(study: Study, task: str) -> list[Element]:
    chart = tables.share_chart(study, task, "chart-shares")
    if chart is None:
        return []
    return shown(
        Text(_weights_sentence(study, task)),
        chart,
        *attention_maps(study, "map-"),
        Fold("Every map and group of keys", [tables.share_table(study, task)]),
    )


def _weights_sentence(study: Study, task: str) -> str:
    models = models_of(study, task)
    names = {BASELINE: "the Transformer", V1: "V1", UNIFORM: "V1 with a uniform second map"}
    if any("attention" not in models.get(name, {}) for name in names):
        return ""
    sums = {name: models[name]["attention"]["net"]["noise"]["mean"] for name in names}
    on_noise = listing(f"{number(x, 2)} with {names[name]}" for name, x in sums.items())
    return (
        f"After training the weights on noise add up to {on_noise}. A negative sum means that the "
        "second map takes more from noise than the first one gives it."
    )


def _costs(study: Study) -> list[Element]:
    costs: list[Element] = []
    for task in study.info["tasks"]:
        names = _trial_names(study.info, task, study.types)
        trials = replace(study, runs=tuple(run for run in study.runs if run.name in names))
        sizes = Fold(f"{tables.task_name(task)}: sizes", [models_table(trials)])
        costs += [Part(tables.task_name(task), [cost_table(trials), sizes])]
    return [*costs, Text(f"A run ends when the task is learned. {TIMES}", "remark")]
