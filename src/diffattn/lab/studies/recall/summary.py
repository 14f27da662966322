"""From finished runs to the results of a recall study, and its limits in words."""

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import fmean, median
from typing import Any

from diffattn.files.io import write_json
from diffattn.lab.catalog.models import BASELINE, NEVER_ATTEND
from diffattn.lab.data.recall_tasks import NoisyRecallConfig, guessing_ceilings
from diffattn.lab.records.study_results import Leak, RecallDifference, RecallResults
from diffattn.lab.report.page.wording import plural
from diffattn.lab.stats.intervals import mean_interval, median_interval
from diffattn.lab.stats.paired import holm
from diffattn.lab.stats.survival import log_rank
from diffattn.lab.studies.limits import heads_below, maps_of
from diffattn.lab.studies.recall.config import RecallStudyConfig
from diffattn.lab.studies.study import PlannedRun, Results, Runs
from diffattn.lab.training.practical_measures import GROUPS, key_groups
from diffattn.lab.training.recall import TEST, held_out
from diffattn.models.loading import quiet
from diffattn.models.modeling_diff_transformer import DiffTransformerForCausalLM
from diffattn.probes.attention_rows import attention_rows

_TRIED = ("solved_step", "steps", "validation_loss", "test_accuracy")


def judge_recall(config: RecallStudyConfig, runs: Runs, *_: Any) -> RecallResults:
    """Judge finished runs, and write ``maps.json`` if weights were kept."""
    maps = _recall_maps(config, runs.folder)
    if maps["layers"]:
        write_json(runs.folder.parent / "maps.json", maps)
    return recall_results(config, runs.results)


def _recall_maps(config: RecallStudyConfig, runs: Path) -> dict[str, Any]:
    """Maps of every type with weights on the first test sequence.

    They show the last layer's head with the most weight on the answers. Keys are shown as letters,
    values as numbers and noise as dots.
    """
    task, setting = config.tasks[0], config.tasks[0].task
    assert isinstance(setting, NoisyRecallConfig), "the first task of every recipe is noisy recall"
    batch = held_out(task, TEST)
    is_answer = (key_groups(setting, batch)[0] == GROUPS.index("answer")).float()  # [Q, T]
    ids, queries = batch.input_ids[0], batch.queries[0]
    layers: dict[str, Any] = {}
    for name in config.types:
        run = f"{task.task_name}-{name}-seed{config.seeds[0]}"
        if not (runs / run / "model").exists():
            continue
        with quiet(warnings=True):
            model = DiffTransformerForCausalLM.from_pretrained(runs / run / "model").eval()
        *before, rows = attention_rows(model, ids[None])
        on_answers = (rows.signed[:, queries].cpu() * is_answer).sum((-2, -1))
        head = int(on_answers.argmax())
        layers[name] = {"run": run, "layer": len(before), "head": head} | maps_of(rows, head)
    keys = [chr(ord("A") + i) for i in range(setting.num_keys)]
    values = [str(i + 1) for i in range(setting.num_values)]
    words = ["", *keys, *values, *["·"] * setting.num_noise]
    return {"schema": 1, "tokens": [words[token] for token in ids.tolist()], "layers": layers}


def recall_results(config: RecallStudyConfig, results: Results) -> RecallResults:
    """Steps and accuracies per task and model, and differences with their tests."""
    tasks = _measured_tasks(config, results)
    for name, differences in step_differences(tasks).items():
        task = tasks[name]
        first_run = next(iter(task["types"].values()))["runs"][0]
        sequences = results[first_run]["test_sequences"]
        task["differences"] = differences
        task["leak"] = find_leak(task["controls"], task["ceilings"], sequences)
        task["uninformative"] = explain_uninformative(task["types"], task["leak"])
    return {
        "schema": 2,
        "kind": "recall",
        "protocol": {"name": "recall_study", "version": 6},
        "scale": config.scale,
        "tasks": tasks,
        "statement": _statement(config),
        "complete": True,
    }


def _measured_tasks(config: RecallStudyConfig, results: Results) -> dict[str, Any]:
    choices = config.choices(results)
    groups = config.groups({group: choice.rate for group, choice in choices.items()})
    tasks = {}
    for task in config.tasks:
        models: dict[str, Any] = {}
        for name in config.models:
            group, like = (task.task_name, name), config.like(name)
            choice = choices[task.task_name, like]
            is_control = name in config.controls
            models[name] = {"like": like} if is_control else {}
            models[name] |= {"learning_rate": choice.rate}
            if name in config.swept:
                tries = [
                    {"run": run.name, "learning_rate": run.train.learning_rate}
                    | {key: results[run.name][key] for key in _TRIED}
                    for run in (x.config for x in config.sweep({group: choice.tried}))
                ]
                models[name] |= {"inside": choice.inside, "sweep": tries}
            models[name] |= _trial_summary(groups[group], results)
        tasks[task.task_name] = {
            "num_steps": task.train.num_steps,
            "ceilings": guessing_ceilings(task.task),
            "types": {name: models[name] for name in config.types},
            "controls": {name: models[name] for name in config.controls},
        }
    return tasks


def _trial_summary(planned: Sequence[PlannedRun], results: Results) -> dict[str, Any]:
    trials = [results[run.config.name] for run in planned]
    steps = [run["solved_step"] for run in trials]
    middle = median(math.inf if step is None else step for step in steps)
    by_query = zip(*(run["test_by_query"] for run in trials), strict=True)
    summary: dict[str, Any] = {
        "parameter_difference": planned[0].facts["parameter_difference"],
        "runs": [run["run"] for run in trials],
        "trials": len(trials),
        "solved": sum(run["solved"] for run in trials),
        "solved_steps": steps,
        "median_step": middle if math.isfinite(middle) else None,
        "steps": [run["steps"] for run in trials],
        "test_accuracy": [run["test_accuracy"] for run in trials],
        "test_by_query": [fmean(column) for column in by_query],
        "largest_write": max(run["largest_write"] for run in trials),
    }
    if all("attention" in run for run in trials):
        shares = summary["attention"] = {}
        for name, groups in trials[0]["attention"].items():
            values = {group: [run["attention"][name][group] for run in trials] for group in groups}
            shares[name] = {
                group: {"values": each} | mean_interval(each).recorded()
                for group, each in values.items()
            }
    return summary


def _statement(config: RecallStudyConfig) -> str:
    size = heads_below(twin.config for twin in config.twins.values())
    if len(config.learning_rates) > 1:
        seeds = plural(len(config.sweep_seeds), "other seed")
        rates = (
            "The learning rate of each type and of each control that attends was chosen by one "
            f"rule from {len(config.learning_rates)} rates or more on {seeds}, so it need not be "
            "its best"
        )
    elif config.member_rates:
        rates = "Each type's learning rate is the one that the study of this task chose"
    else:
        rates = "All types share one learning rate, so it need not be the best of any"
    control_seeds = plural(len(config.seeds[: config.control_seeds]), "seed")
    return (
        f"{size}Learning to recall is a sudden change, so what counts is when each of "
        f"{plural(len(config.seeds), 'seed')} gets there; models without attention have "
        f"{control_seeds} each. A run that did not may have with more steps. Only large "
        f"differences between so few can be told from chance. {rates}; models without attention "
        "use the rate of what they are compared with. Models and sequences are small: they show "
        "what is learned sooner here, not what the papers' models can do."
    )


def step_differences(tasks: Mapping[str, Mapping[str, Any]]) -> dict[str, list[RecallDifference]]:
    """Median differences in the steps until a task is learned, and the tests of types.

    Controls with attention are compared with V1 too. Types have p-values, adjusted by Holm over all
    tasks.
    """
    differences = {name: _task_differences(task) for name, task in tasks.items()}
    tested = [entry for entries in differences.values() for entry in entries if "p" in entry]
    for entry, p in zip(tested, holm([entry["p"] for entry in tested]), strict=True):
        entry["p_holm"] = p
    return differences


def _task_differences(task: Mapping[str, Any]) -> list[RecallDifference]:
    types, controls, last = task["types"], task["controls"], task["num_steps"]
    steps = {name: entry["solved_steps"] for name, entry in {**types, **controls}.items()}
    attending = [name for name in controls if name not in NEVER_ATTEND]
    pairs = [(name, BASELINE) for name in (*types, *attending) if name != BASELINE]
    pairs += [(name, "diff") for name in attending if "diff" in types]
    differences: list[RecallDifference] = []
    for name, baseline in pairs:
        sides = steps[name], steps[baseline]
        values = [
            # A run that did not learn the task is later by all steps.
            float(last * ((a is None) - (b is None)) if a is None or b is None else a - b)
            for a, b in zip(*sides, strict=True)
        ]
        difference: Any = {
            "variant": name,
            "baseline": baseline,
            "values": values,
            **median_interval(values).recorded(),
        }
        if name in types:
            difference["p"] = log_rank(*sides, last)
        differences.append(difference)
    return differences


def find_leak(
    controls: Mapping[str, Any], ceilings: Mapping[str, float], test_sequences: int
) -> Leak:
    """Whether a model without attention answers better than a random guess plausibly does.

    The limit is the guess plus four standard errors over sequences, whose queries are dependent.
    """
    guess = ceilings["values"]
    limit = guess + 4 * (guess * (1 - guess) / test_sequences) ** 0.5
    blind = [controls[name]["test_accuracy"] for name in NEVER_ATTEND if name in controls]
    highest = max(accuracy for of_runs in blind for accuracy in of_runs)
    return {"limit": limit, "highest": highest, "leaks": highest > limit}


def explain_uninformative(types: Mapping[str, Any], leak: Leak) -> str:
    """The reason why a task is uninformative about types; empty if it is informative."""
    if leak["leaks"]:
        return (
            f"a model without attention answers {leak['highest']:.3f} of the queries, more than "
            f"the {leak['limit']:.3f} that guessing explains, so the task gives answers away."
        )
    if not any(entry["solved"] for entry in types.values()):
        return "no run of any type was solved in the steps given."
    return ""
