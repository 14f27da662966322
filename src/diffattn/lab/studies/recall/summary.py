"""From finished runs to the recall study's results and plain words."""

from collections.abc import Mapping, Sequence
from statistics import fmean
from typing import Any

from diffattn.lab.data.recall_tasks import guessing_ceilings
from diffattn.lab.report.page.wording import plural
from diffattn.lab.report.sections.recall_tables import task_name
from diffattn.lab.stats.proportions import wilson_interval
from diffattn.lab.studies.limits import heads_below
from diffattn.lab.studies.recall.config import PROTOCOL, Choice, RecallStudyConfig
from diffattn.lab.studies.recall.verdicts import claims, leak, pair_tests
from diffattn.lab.studies.study import Member, Results


def recall_results(config: RecallStudyConfig, results: Results) -> dict[str, Any]:
    """Solved shares, steps and accuracies per task and member, tests between them, and verdicts.

    Args:
        config: The study.
        results: Name of every run to what its ``results.json`` holds.
    """
    chosen = config.choices(results)
    groups = config.groups({group: choice.rate for group, choice in chosen.items()})
    tasks: dict[str, dict[str, Any]] = {}
    for task in config.tasks:
        swept = {
            name: _rate(config, task.task_name, name, chosen[task.task_name, name], results)
            for name in config.swept
        }
        counted = {
            name: _counts(groups[task.task_name, name], results)
            for name in (*config.types, *config.controls)
        }
        types = {name: swept[name] | counted[name] for name in config.types}
        controls = {
            name: {
                "like": config.like(name),
                "learning_rate": chosen[task.task_name, config.like(name)].rate,
            }
            | swept.get(name, {})
            | counted[name]
            for name in config.controls
        }
        tasks[task.task_name] = {
            "num_steps": task.train.num_steps,
            "ceilings": guessing_ceilings(task.task),
            "types": types,
            "controls": controls,
        }
    tests = pair_tests(
        {
            name: (entry["types"], entry["controls"], entry["num_steps"])
            for name, entry in tasks.items()
        }
    )
    for name, entry in tasks.items():
        entry |= tests[name]
        sequences = results[next(iter(entry["types"].values()))["runs"][0]]["test_sequences"]
        entry["leak"] = leak(entry["controls"], entry["ceilings"], sequences)
        members = entry["types"] | entry["controls"]
        at_edge = [member for member, of in members.items() if of.get("inside") is False]
        entry |= claims(entry["types"], tests[name], entry["leak"], at_edge)
    return {
        "schema": 1,
        "kind": "recall",
        "protocol": {"name": "recall_study", "version": PROTOCOL},
        "scale": config.scale,
        "tasks": tasks,
        "statement": statement(config, tasks),
        "complete": True,
    }


def _rate(
    config: RecallStudyConfig, task: str, name: str, choice: Choice, results: Results
) -> dict[str, Any]:
    """The learning rate of a member that is swept, and every try that led to it."""
    swept = config.sweep({(task, name): choice.tried})
    return {
        "learning_rate": choice.rate,
        "inside": choice.inside,
        "sweep": [
            {
                "run": member.config.name,
                "learning_rate": member.config.train.learning_rate,
                **{
                    key: results[member.config.name][key]
                    for key in ("solved_step", "steps", "validation_loss", "test_accuracy")
                },
            }
            for member in swept
        ],
    }


def _counts(members: Sequence[Member], results: Results) -> dict[str, Any]:
    """What the trials of a type or a control came to."""
    trials = [results[member.config.name] for member in members]
    solved = sum(run["solved"] for run in trials)
    share = wilson_interval(solved, len(trials))
    summary: dict[str, Any] = {
        "parameter_difference": members[0].facts["parameter_difference"],
        "runs": [run["run"] for run in trials],
        "trials": len(trials),
        "solved": solved,
        "solved_share": share.recorded() | {"method": share.method},
        "solved_steps": [run["solved_step"] for run in trials],
        "steps": [run["steps"] for run in trials],
        "test_accuracy": [run["test_accuracy"] for run in trials],
        "test_by_query": _means([run["test_by_query"] for run in trials]),
        "largest_write": max(run["largest_write"] for run in trials),
    }
    if "test_by_depth" in trials[0]:
        summary["test_by_depth"] = {
            depth: fmean(run["test_by_depth"][depth] for run in trials)
            for depth in trials[0]["test_by_depth"]
        }
    return summary


def _means(rows: Sequence[Sequence[float]]) -> list[float]:
    return [fmean(column) for column in zip(*rows, strict=True)]


def statement(config: RecallStudyConfig, tasks: Mapping[str, Mapping[str, Any]]) -> str:
    """What this study shows of each claim, and what it cannot show, in plain words."""
    found = " ".join(
        f"{task_name(task)}. Can it be learned? {entry['can']['sentence']} Is it learned sooner? "
        f"{entry['sooner']['sentence']}"
        for task, entry in tasks.items()
    )
    size = heads_below(
        task.model.twin(name, config.match).config for task in config.tasks for name in config.types
    )
    seeds, sweeps = len(config.seeds), len(config.sweep_seeds)
    controls_too = set(config.swept) > set(config.types)
    whose = "Each type's learning rate"
    if controls_too:
        whose = "The learning rate of each type and of each control that attends"
    rates = (
        f"{whose} was chosen by one rule from "
        f"{len(config.learning_rates)} rates or more on {plural(sweeps, 'other seed')}, so it need "
        "not be its best"
        if len(config.learning_rates) > 1
        else "All types share one learning rate, so it need not be the best of any"
    )
    others = "models without attention" if controls_too else "controls"
    controls = len(config.seeds[: config.control_seeds])
    return (
        f"{found} {size}Learning to recall is a sudden change, so what counts is how many of "
        f"{plural(seeds, 'seed')} get there within the steps given, and when; {others} have "
        f"{plural(controls, 'seed')} each. A run that did not may have with more steps. Only large "
        f"differences between so few can be told from chance. {rates}; {others} use the rate "
        "of what they are compared with. Models and sequences are small: they show what is learned "
        "sooner here, not what the papers' models can do."
    )
