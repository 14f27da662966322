"""Tables of a recall study."""

import math
from collections.abc import Sequence
from statistics import median
from typing import Any

from diffattn.lab.catalog.models import NEVER_ATTEND
from diffattn.lab.report.page.runs import BASELINE, Study
from diffattn.lab.report.page.tables import (
    Table,
    head_cell,
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
    plural,
    span,
    type_name,
)

TASK_NAMES = {"noisy_recall": "Noisy recall", "multi_needle": "Multi-needle", "mqar": "MQAR"}
_BY_TEST = ("fisher_exact", "log_rank")
_TESTS = ("fisher_exact", "fisher_exact_holm", "log_rank", "log_rank_holm")
CEILING_NAMES = {
    "values": "any value",
    "pairs": "a value of the context",
    "elimination": "a value not answered before",
}


def swept_models(info: dict[str, Any]) -> list[str]:
    """Models with a learning rate of their own and all seeds."""
    return [
        *info["types"],
        *(name for name, control in info["controls"].items() if control["like"] == name),
    ]


def task_name(task: str) -> str:
    """Human name of a task; an unknown task keeps its id."""
    return TASK_NAMES.get(task, task)


def task_in_words(settings: dict[str, Any]) -> str:
    """What a task asks, from its resolved settings."""
    task = settings.get("task", {})
    pairs, queries = task.get("num_pairs"), task.get("num_queries")
    length = settings["train"].get("seq_len")
    if task.get("name") == "noisy_recall":
        drawn = "with replacement" if task.get("replacement") else "each key at most once"
        noise = f"{100 * task.get('noise_ratio', 0):.0f} % of the context is noise"
        text = f"{pairs} pairs, {noise}, {queries} queries {drawn}"
    elif task.get("name") == "multi_needle":
        text = f"{pairs} needles in {task.get('context_len')} tokens, {queries} of them asked for"
    else:
        text = f"{pairs} pairs, each asked for once"
    return f"{text}; sequences of {length} tokens"


def ceilings_in_words(ceilings: dict[str, float]) -> str:
    """Every ceiling with its value."""
    return ", ".join(
        f"{CEILING_NAMES.get(name, name)} {number(value, 3)}" for name, value in ceilings.items()
    )


def solved_table(study: Study, task: str) -> Table:
    """Solved shares with their intervals, and the spread of steps and of test accuracy."""
    rows = []
    for name, summary in _entry(study, task)["types"].items():
        values = [*_solved(summary), _range(summary["test_accuracy"])]
        rows.append([type_cell(name), *(number_cell(value, summary["runs"]) for value in values)])
    headers = [
        "Model",
        "Learning rate",
        "Solved",
        "95 % interval of the share",
        "Median step (range)",
        "Test accuracy",
    ]
    goal = study.info["tasks"][task].get("solved_accuracy", MISSING)
    caption = f"{task_name(task)}. Solved: validation accuracy {goal} at two evaluations in a row."
    return table(caption, headers, rows)


def trials_table(study: Study, task: str) -> Table:
    """Steps and test accuracy of every trial of a task."""
    rows = []
    entry = _entry(study, task)
    for name, summary in {**entry["types"], **entry["controls"]}.items():
        steps = zip(summary["runs"], summary["solved_steps"], summary["steps"], strict=True)
        accuracy = zip(summary["runs"], summary["test_accuracy"], strict=True)
        rows.append(
            [
                type_cell(name),
                per_run((run, _step(solved, spent)) for run, solved, spent in steps),
                per_run((run, number(value, 3)) for run, value in accuracy),
            ]
        )
    return table(
        "Every trial, controls with them.", ["Model", "Solved at step", "Test accuracy"], rows
    )


def tests_table(study: Study, task: str) -> Table:
    """p-values between every two types: of the solved shares, and of the steps taken."""
    tests = _entry(study, task)["tests"]
    return _tests(
        tests,
        "Two-sided p-values between types; adjusted by Holm over all pairs of types, test by test."
        f"{_log_rank_in_words(tests)}",
    )


def control_tests_table(study: Study, task: str) -> Table:
    """The same between controls and types."""
    tests = _entry(study, task)["control_tests"]
    return _tests(
        tests,
        "The same between controls and types, adjusted as a family of their own."
        f"{_log_rank_in_words(tests)}",
    )


def _log_rank_in_words(tests: Sequence[dict[str, Any]]) -> str:
    """Where its p-values come from, with a space before it; nothing where that is not recorded."""
    kinds = {test.get("log_rank_exact") for test in tests}
    how = ""
    if kinds == {True}:
        how = "all ways to split the runs are counted"
    elif kinds == {False}:
        how = "by the chi-square distribution, as there are too many ways to split the runs"
    elif kinds == {True, False}:
        how = "all ways to split the runs are counted, or where there are too many by the "
        how += "chi-square distribution"
    return f" Log-rank p-values: {how}." if how else ""


def _tests(tests: list[dict[str, Any]], caption: str) -> Table:
    rows = [
        [
            head_cell(" and ".join(map(type_name, test["types"]))),
            *(number_cell(p_value(test[key])) for key in _TESTS),
        ]
        for test in tests
    ]
    headers = [
        "Members",
        "Solved share (Fisher's exact)",
        "adjusted",
        "Solved sooner (log-rank)",
        "adjusted",
    ]
    return table(caption, headers, rows)


def controls_table(study: Study, task: str) -> Table:
    """What every control changes and what it came to."""
    rows = []
    swept = swept_models(study.info)
    for name, summary in _entry(study, task)["controls"].items():
        values = [*_solved(summary), _range(summary["test_accuracy"])]
        rows.append(
            [
                type_cell(name),
                word_cell("its own" if name in swept else type_name(summary["like"])),
                number_cell(count(summary["parameter_difference"], signed=True), summary["runs"]),
                *(number_cell(value, summary["runs"]) for value in values),
            ]
        )
    headers = [
        "Control",
        "Rate of",
        "Parameter difference",
        "Learning rate",
        "Solved",
        "95 % interval of the share",
        "Median step (range)",
        "Test accuracy",
    ]
    return table(f"Controls: one thing changed{_seeds_in_words(study)}", headers, rows)


def _seeds_in_words(study: Study) -> str:
    """Seeds and rates of the controls, after what they are."""
    info = study.info
    shared = [name for name in info["controls"] if name not in swept_models(info)]
    few = f"{plural(len(info['seeds'][: info['control_seeds']]), 'seed')} each, at the learning "
    few += "rate of what they are compared with."
    if len(shared) == len(info["controls"]):
        return f", {few}"
    at = "a rate chosen as for types" if len(info["learning_rates"]) > 1 else "the rate of all"
    all_seeds = f", {plural(len(info['seeds']), 'seed')} each, at {at}"
    return f"{all_seeds}; {listing(map(type_name, shared))}: {few}" if shared else f"{all_seeds}."


def leak_in_words(leak: dict[str, Any]) -> str:
    """Whether models that see no other token stay at a guess."""
    if leak["highest"] is None:
        return "No model without attention was trained: whether the task leaks is not known."
    verdict = "The task leaks" if leak["leaks"] else "The task does not leak"
    return (
        f"{verdict}: a model that sees no other token answers {number(leak['highest'], 3)}; by "
        f"guessing up to {number(leak['limit'], 3)} would be chance."
    )


def by_query_table(study: Study, task: str) -> Table:
    """Test accuracy of each query in the order asked, and by depth where there are depths."""
    types = _entry(study, task)["types"]
    depths = list(dict.fromkeys(d for s in types.values() for d in s.get("test_by_depth", {})))
    queries = max((len(summary["test_by_query"]) for summary in types.values()), default=0)
    rows = []
    for name, summary in types.items():
        asked, by_depth = summary["test_by_query"], summary.get("test_by_depth", {})
        values = [*asked, *[None] * (queries - len(asked)), *map(by_depth.get, depths)]
        rows.append(
            [type_cell(name), *(number_cell(number(v, 3), summary["runs"]) for v in values)]
        )
    headers = [f"query {i + 1}" for i in range(queries)]
    headers += [f"depth {_depth(depth)}" for depth in depths]
    caption = "Test accuracy by query position, mean over trials."
    if depths:
        caption += " By depth: of the first query."
    return table(caption, ["Model", *headers], rows)


def sweep_table(study: Study, task: str) -> Table | None:
    """Tabulate the result of every learning rate; ``None`` where a single rate was used."""
    entry = _entry(study, task)
    swept = {
        name: summary
        for name, summary in {**entry["types"], **entry["controls"]}.items()
        if "sweep" in summary
    }
    tried = {run["learning_rate"] for summary in swept.values() for run in summary["sweep"]}
    if not tried:
        return None
    rates = sorted(tried)
    rows = []
    for name, summary in swept.items():
        row = [type_cell(name)]
        for rate in rates:
            runs = [run for run in summary["sweep"] if run["learning_rate"] == rate]
            row.append(
                per_run(
                    (
                        run["run"],
                        f"{_step(run['solved_step'], run['steps'])}, validation loss "
                        f"{number(run['validation_loss'], 3)}",
                    )
                    for run in runs
                )
            )
        row.append(number_cell(f"{summary['learning_rate']:g}"))
        row.append(word_cell("yes" if summary["inside"] else "no"))
        rows.append(row)
    headers = ["Model", *(f"rate {rate:g}" for rate in rates), "Chosen", "Inside the sweep"]
    caption = (
        "Learning-rate sweep on seeds of its own. Chosen: most runs solved, then fewest steps, "
        "then smallest validation loss. A sweep whose best rate was at its edge was extended."
    )
    return table(caption, headers, rows)


def summary_table(study: Study) -> Table:
    """Tabulate the results of every task and model."""
    rows = []
    for task in study.info["tasks"]:
        entry = _entry(study, task)
        p_values: dict[str, str] = {}
        for test in (*entry["tests"], *entry["control_tests"]):
            if BASELINE in test["types"]:
                adjusted = ", ".join(p_value(test[f"{name}_holm"]) for name in _BY_TEST)
                p_values |= dict.fromkeys(test["types"], adjusted)
        p_values.pop(BASELINE, None)
        for name, summary in {**entry["types"], **entry["controls"]}.items():
            guess = number(entry["ceilings"].get("values" if name in NEVER_ATTEND else "pairs"), 3)
            values = [
                *_solved(summary),
                p_values.get(name, MISSING),
                _range(summary["test_accuracy"]),
                guess,
            ]
            rows.append([word_cell(task_name(task)), type_cell(name), *map(number_cell, values)])
    headers = [
        "Task",
        "Model",
        "Learning rate",
        "Solved",
        "95 % interval",
        "Median step (range)",
        "Holm's p to softmax: share, steps",
        "Test accuracy",
        "Guess",
    ]
    return table("Recall, by task and model.", headers, rows)


def _spread(solved: Sequence[int | None], most: int) -> str:
    """Median and range of the steps; a run that was not solved is slower than any other."""
    steps = sorted(math.inf if step is None else step for step in solved)

    def words(step: float) -> str:
        return f"{step:,g}" if math.isfinite(step) else f"over {count(most)}"

    middle, low, high = words(median(steps)), words(steps[0]), words(steps[-1])
    return middle if low == high else f"{middle} ({low} to {high})"


def _range(values: Sequence[float]) -> str:
    return span(min(values), max(values), 3)


def settings_table(study: Study) -> Table:
    """What each task asks and how long it is trained."""
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


def _entry(study: Study, task: str) -> dict[str, Any]:
    assert study.results is not None
    return dict(study.results["tasks"][task])


def _solved(summary: dict[str, Any]) -> list[str]:
    """Learning rate, solved trials, interval of their share, and steps."""
    share = summary["solved_share"]
    return [
        f"{summary['learning_rate']:g}",
        f"{summary['solved']} of {summary['trials']}",
        span(share["low"], share["high"], 2),
        _spread(summary["solved_steps"], max(summary["steps"])),
    ]


def _depth(key: str) -> str:
    """A depth of the context as a share of it; another name as it is."""
    try:
        return f"{100 * float(key):.0f} %"
    except ValueError:
        return key


def _step(solved: int | None, spent: int) -> str:
    return f"not in {count(spent)}" if solved is None else count(solved)
