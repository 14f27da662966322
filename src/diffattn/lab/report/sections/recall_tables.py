"""Tables of a recall study."""

import math
from collections.abc import Sequence
from statistics import fmean
from typing import Any

from diffattn.lab.catalog.models import NEVER_ATTEND
from diffattn.lab.report.page.committed import committed_recall
from diffattn.lab.report.page.runs import BASELINE, Study
from diffattn.lab.report.page.tables import (
    Cell,
    Table,
    head_cell,
    mean_cell,
    number_cell,
    per_run,
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
    span,
)

V1, UNIFORM = "diff", "diff_uniform"
MAPS = {
    "net": "Net weight",
    "map_1": "First map",
    "map_2": "Second map",
    "size": "Size of weights",
}
"""Key of the recorded attention -> its name."""
KEY_GROUPS = {"answer": "the answer", "noise": "noise"}
TASK_NAMES = {"noisy_recall": "Noisy recall", "mqar": "MQAR"}
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
    return TASK_NAMES.get(task, task)


def task_results(study: Study, task: str) -> dict[str, Any]:
    """Recorded results of a task."""
    return dict(study.recorded["tasks"][task])


def members_of(study: Study, task: str) -> dict[str, dict[str, Any]]:
    """Type or control -> its recorded results on a task."""
    entry = task_results(study, task)
    return {**entry["types"], **entry["controls"]}


def median_step(member: dict[str, Any]) -> str:
    """Median step at which a model learned a task; ``"over N"`` if half of its runs did not."""
    return _step(member["median_step"], member)


def _step(step: float | None, member: dict[str, Any]) -> str:
    return f"over {count(max(member['steps']))}" if step is None else f"{step:,g}"


def _range(member: dict[str, Any]) -> str:
    steps = sorted(member["solved_steps"], key=lambda step: math.inf if step is None else step)
    low, high = _step(steps[0], member), _step(steps[-1], member)
    return "" if low == high else f"{low} to {high}"


def find_difference(
    entry: dict[str, Any], variant: str, baseline: str = BASELINE
) -> dict[str, Any] | None:
    """A recorded difference in steps; ``None`` if the two were not compared."""
    for row in entry["differences"]:
        if (row["variant"], row["baseline"]) == (variant, baseline):
            return dict(row)
    return None


def format_difference(row: dict[str, Any] | None) -> str:
    """Median and interval, e.g. ``"−137.5, −150 to −100"``; empty without a difference."""
    return "" if row is None else ", ".join(filter(None, [_signed(row["mean"]), _ends(row)]))


def _signed(steps: float) -> str:
    return f"{steps:+,g}".replace("-", "−") if steps else "0"


def _ends(row: dict[str, Any]) -> str:
    """Both ends of an interval; empty if there are too few seeds for an interval."""
    low, high = row["low"], row["high"]
    return "" if low is None else f"{_signed(low)} to {_signed(high)}"


def _difference_cell(row: dict[str, Any] | None) -> Cell:
    return (
        number_cell(MISSING) if row is None else number_cell(_signed(row["mean"]), note=_ends(row))
    )


def committed_beside(study: Study, task: str) -> dict[str, Any] | None:
    """The committed study of the task; ``None`` if ``study`` is that study, or for another task."""
    committed = committed_recall()
    is_same = study.info.get("config_hash") == committed["config_hash"]
    return None if is_same or task != committed["task"] else committed


def answer_table(study: Study, task: str) -> Table:
    """Steps, accuracy and attention of the types and of the decisive control, one row each."""
    entry, every = task_results(study, task), members_of(study, task)
    members = {name: every[name] for name in (*study.types, UNIFORM) if name in every}
    with_attention = any("attention" in member for member in members.values())
    beside = committed_beside(study, task)
    rows = []
    for name, member in members.items():
        row = [
            type_cell(name),
            number_cell(median_step(member), member["runs"], note=_range(member)),
        ]
        if beside is None:
            row.append(_difference_cell(find_difference(entry, name)))
        row.append(number_cell(number(fmean(member["test_accuracy"]), 3), member["runs"]))
        if with_attention:
            row += [share_cell(member, "net", group) for group in KEY_GROUPS]
        if beside is not None:
            note = format_difference(find_difference(beside, name))
            row.append(number_cell(beside["steps"].get(name, MISSING), note=note))
        rows.append(row)
    headers = ["Model", "Steps", *([] if beside else ["Minus Transformer"]), "Accuracy"]
    caption = "Median step at which it is learned, with its range over seeds; test accuracy."
    if with_attention:
        headers += ["Net on answer", "Net on noise"]
        caption += " Net: sum of the last layer's weights A or A₁ − λA₂; 0 on noise is best."
    if beside is not None:
        headers.append(f"Steps, {beside['seeds']} seeds")
        caption += " Last: published/recall, with the difference to the Transformer."
    return table(f"{caption} Intervals: 95 %.", headers, rows)


def share_cell(member: dict[str, Any], key: str, group: str) -> Cell:
    """A mean sum of weights, with its interval."""
    share = member.get("attention", {}).get(key, {}).get(group)
    return mean_cell(share, 2, member["runs"])


def share_table(study: Study, task: str) -> Table:
    """Weights of every map on every group of keys, for all models with attention."""
    members = {
        name: member
        for name, member in members_of(study, task).items()
        if "attention" in member and name not in NEVER_ATTEND
    }
    groups = next(iter(members.values()))["attention"]["map_1"]
    rows = [
        [type_cell(name), number_cell(title), *(share_cell(member, key, g) for g in groups)]
        for name, member in members.items()
        for key, title in MAPS.items()
        if key in member["attention"]
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
        for name, member in members_of(study, task).items():
            runs, lead = member["runs"], find_difference(entry, name)
            accuracy = member["test_accuracy"]
            row = [
                type_cell(name),
                number_cell(f"{member['learning_rate']:g}", runs),
                number_cell(f"{member['solved']} of {member['trials']}", runs),
                number_cell(median_step(member), runs, note=_range(member)),
                _difference_cell(lead),
                number_cell(p_value((lead or {}).get("p_holm"))),
                _difference_cell(find_difference(entry, name, V1)),
                number_cell(span(min(accuracy), max(accuracy), 3), runs),
            ]
            rows.append(row if len(tasks) == 1 else [word_cell(task_name(task)), *row])
    goal = study.info["tasks"][tasks[0]].get("solved_accuracy", MISSING)
    caption = (
        f"{listing(map(task_name, tasks))}. Learned: validation accuracy {goal} at two evaluations "
        "in a row. Differences in steps: median by seed and its interval; a run that never learned "
        "it counts as all steps later. p: log-rank test of a type, adjusted by Holm."
    )
    headers = [] if len(tasks) == 1 else ["Task"]
    headers += ["Model", "Learning rate", "Learned by", "Median step", "Minus Transformer"]
    return table(caption, [*headers, "p", "Minus DIFF V1", "Test accuracy"], rows)


def trials_table(study: Study, task: str) -> Table:
    """Steps and test accuracy of every trial of a task."""
    rows = []
    for name, member in members_of(study, task).items():
        steps = zip(member["runs"], member["solved_steps"], member["steps"], strict=True)
        accuracy = zip(member["runs"], member["test_accuracy"], strict=True)
        rows.append(
            [
                type_cell(name),
                per_run((run, _solved_at(solved, spent)) for run, solved, spent in steps),
                per_run((run, number(value, 3)) for run, value in accuracy),
            ]
        )
    headers = ["Model", "Learned at step", "Test accuracy"]
    return table("Every trial, controls with them.", headers, rows)


def sweep_table(study: Study, task: str) -> Table | None:
    """Tabulate the result of every learning rate; ``None`` where a single rate was used."""
    swept = {
        name: member for name, member in members_of(study, task).items() if member.get("sweep")
    }
    if not swept:
        return None
    rates = sorted({run["learning_rate"] for member in swept.values() for run in member["sweep"]})
    rows = []
    for name, member in swept.items():
        tries = [
            per_run(
                (
                    run["run"],
                    f"{_solved_at(run['solved_step'], run['steps'])}, validation loss "
                    f"{number(run['validation_loss'], 3)}",
                )
                for run in member["sweep"]
                if run["learning_rate"] == rate
            )
            for rate in rates
        ]
        inside = word_cell("yes" if member["inside"] else "no")
        rows.append([type_cell(name), *tries, number_cell(f"{member['learning_rate']:g}"), inside])
    headers = ["Model", *(f"rate {rate:g}" for rate in rates), "Chosen", "Inside the sweep"]
    caption = (
        "Learning-rate sweep on seeds of its own. Chosen: most runs solved, then fewest steps, "
        "then smallest validation loss. A sweep whose best rate was at its edge was extended."
    )
    return table(caption, headers, rows)


def settings_table(study: Study) -> Table:
    """Each task in words, the length of its training, and its models."""
    rows = []
    for task, settings in study.info["tasks"].items():
        train, model = settings["train"], settings["model"]
        values = (
            task_in_words(settings),
            f"{count(train.get('num_steps'))} steps of "
            f"{count(train['batch_tokens'] // train['seq_len'])} sequences",
            f"{count(model.get('num_hidden_layers'))} layers, "
            f"{count(model.get('hidden_size'))} channels, initial deviation "
            f"{model.get('initializer_range', MISSING)}, embeddings times "
            f"{model.get('embedding_multiplier', MISSING)}",
        )
        rows.append([head_cell(task_name(task)), *map(word_cell, values)])
    return table("Tasks.", ["Task", "What is asked", "Trained at most", "Models"], rows)


def task_in_words(settings: dict[str, Any]) -> str:
    """A task in words, from its resolved settings."""
    task = settings.get("task", {})
    pairs, queries = task.get("num_pairs"), task.get("num_queries")
    length = settings["train"].get("seq_len")
    if task.get("name") == "noisy_recall":
        drawn = "with replacement" if task.get("replacement") else "each key at most once"
        noise = f"{100 * task.get('noise_ratio', 0):.0f} % of the context is noise"
        text = f"{pairs} pairs, {noise}, {queries} queries {drawn}"
    else:
        text = f"{pairs} pairs, each asked for once"
    return f"{text}; sequences of {length} tokens"


def ceilings_in_words(ceilings: dict[str, float]) -> str:
    """Every ceiling with its value."""
    return ", ".join(
        f"{CEILING_NAMES.get(name, name)} {number(value, 3)}" for name, value in ceilings.items()
    )


def _solved_at(solved: int | None, spent: int) -> str:
    return f"not in {count(spent)}" if solved is None else count(solved)
