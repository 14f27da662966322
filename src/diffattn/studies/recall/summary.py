"""From finished runs to the recall study's results and plain words."""

from collections.abc import Mapping
from itertools import combinations
from statistics import fmean
from typing import Any

from diffattn.data.recall_tasks import guessing_ceilings
from diffattn.stats.proportions import fisher_exact, wilson_interval
from diffattn.stats.survival import log_rank
from diffattn.studies.recall.config import (
    RecallMember,
    RecallStudyConfig,
    choose_learning_rates,
)
from diffattn.training.recall_config import RecallConfig

# The papers' models have 8 DIFF heads or more.
SMALLEST_TESTED_HEADS = 8


def recall_results(
    config: RecallStudyConfig, results: Mapping[str, Mapping[str, Any]]
) -> dict[str, Any]:
    """Solved shares, steps and accuracies per task and type, and two-sided tests between types.

    Args:
        config: The study.
        results: Name of every run to what its ``results.json`` holds.
    """
    rates = choose_learning_rates(config, results)
    sweep, trials = _grouped(config.sweep()), _grouped(config.trials(rates))
    tasks = {}
    for task in config.tasks:
        types = {
            name: _type(
                results,
                rates[task.task_name, name],
                sweep[task.task_name, name],
                trials[task.task_name, name],
            )
            for name in config.types
        }
        tasks[task.task_name] = {
            "num_steps": task.train.num_steps,
            "ceilings": guessing_ceilings(task.task),
            "types": types,
            "tests": [
                _test(pair, types, task.train.num_steps) for pair in combinations(config.types, 2)
            ],
        }
    return {
        "schema": 1,
        "kind": "recall",
        "protocol": {"name": "recall_study", "version": 1},
        "scale": config.scale,
        "tasks": tasks,
        "statement": statement(config),
        "complete": True,
    }


def _test(pair: tuple[str, str], types: dict[str, Any], num_steps: int) -> dict[str, Any]:
    """Both tests of two types: of what share is solved, and of how soon."""
    first, second = (types[name] for name in pair)
    return {
        "types": list(pair),
        "fisher_exact": fisher_exact(
            first["solved"], first["trials"], second["solved"], second["trials"]
        ),
        "log_rank": log_rank(first["solved_steps"], second["solved_steps"], num_steps),
    }


def _grouped(members: list[RecallMember]) -> dict[tuple[str, str], list[RecallConfig]]:
    """The runs of every task and type, in their order."""
    groups: dict[tuple[str, str], list[RecallConfig]] = {}
    for member in members:
        run = member.config
        groups.setdefault((run.task_name, run.model.attention_type), []).append(run)
    return groups


def _type(
    results: Mapping[str, Mapping[str, Any]],
    rate: float,
    swept: list[RecallConfig],
    tried: list[RecallConfig],
) -> dict[str, Any]:
    trials = [results[run.name] for run in tried]
    solved = sum(run["solved"] for run in trials)
    share = wilson_interval(solved, len(trials))
    summary: dict[str, Any] = {
        "learning_rate": rate,
        "sweep": [
            {
                "run": run.name,
                "learning_rate": run.train.learning_rate,
                **{
                    key: results[run.name][key]
                    for key in ("solved_step", "steps", "validation_loss", "test_accuracy")
                },
            }
            for run in swept
        ],
        "runs": [run["run"] for run in trials],
        "trials": len(trials),
        "solved": solved,
        "solved_share": {
            "mean": share.mean,
            "low": share.low,
            "high": share.high,
            "level": share.level,
            "method": share.method,
        },
        "solved_steps": [run["solved_step"] for run in trials],
        "steps": [run["steps"] for run in trials],
        "test_accuracy": [run["test_accuracy"] for run in trials],
        "test_by_query": [
            fmean(column) for column in zip(*(run["test_by_query"] for run in trials), strict=True)
        ],
    }
    if "test_by_depth" in trials[0]:
        summary["test_by_depth"] = {
            depth: fmean(run["test_by_depth"][depth] for run in trials)
            for depth in trials[0]["test_by_depth"]
        }
    return summary


def statement(config: RecallStudyConfig) -> str:
    """What this study can and cannot show, in plain words."""
    heads = min(
        m.config.model.num_heads
        for m in config.sweep()
        if m.config.model.attention_type != "softmax" or len(config.types) == 1
    )
    size = (
        f"{heads} DIFF heads are fewer than the papers' {SMALLEST_TESTED_HEADS} or more. "
        if heads < SMALLEST_TESTED_HEADS
        else ""
    )
    seeds, sweeps = len(config.seeds), len(config.sweep_seeds)
    return (
        f"{size}Learning to recall is a sudden change, so what counts is the share of "
        f"{_plural(seeds, 'seed')} that get there within the steps given, and when. A run that did "
        "not may have with more steps. Only large differences between shares of so few can be told "
        f"from chance. Each type's learning rate was chosen by one rule from "
        f"{_plural(len(config.learning_rates), 'rate')} on {_plural(sweeps, 'other seed')}, so it "
        "need not be its best. Models and sequences are tiny: they show what is learned sooner "
        "here, not what the papers' models can do."
    )


def _plural(quantity: int, noun: str) -> str:
    return f"{quantity} {noun}{'' if quantity == 1 else 's'}"
