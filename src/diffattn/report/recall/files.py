"""Read the folder of a recall study: what is there, and in plain words what is not."""

from dataclasses import replace
from pathlib import Path
from typing import Any

from diffattn.errors import CheckpointError
from diffattn.records.io import read_json
from diffattn.report.page.runs import (
    Study,
    StudyRun,
    read_checked,
    read_runs,
    require_fields,
    run_gaps,
)


def is_recall_study(folder: Path) -> bool:
    """Whether ``study.json`` says that the folder holds a recall study.

    Raises:
        CheckpointError: The file is missing or damaged.
    """
    info = read_json(Path(folder) / "study.json")
    return isinstance(info, dict) and info.get("kind") == "recall"


def read_recall_study(folder: Path) -> Study:
    """Read everything the report of a recall study shows.

    Args:
        folder: Study folder with ``study.json``; every other file may be missing.

    Returns:
        The study, its trials first and then its sweep, each in the order they are made.

    Raises:
        CheckpointError: ``study.json`` is missing, or a file is damaged, of another kind or of
            another schema version.
    """
    folder = Path(folder)
    path = folder / "study.json"
    lists = ("types", "seeds", "sweep_seeds", "learning_rates")
    info = read_checked(path, tasks=dict, **dict.fromkeys(lists, list))
    for task in info["tasks"].values():
        require_fields(path, task, model=dict, train=dict, task=dict)
    runs = {run.name: run for run in read_runs(folder, {})}
    wanted = [*trial_names(info), *sweep_names(info)]
    results = None
    if (folder / "results.json").exists():
        results = read_checked(folder / "results.json", tasks=dict, statement=str)
    foreign = [name for name in runs if name not in wanted]
    gaps = [f"Run {name} is in the folder but not part of this study." for name in foreign]
    for name in wanted:
        if name not in runs:
            gaps.append(f"Run {name} was not found.")
        else:
            gaps += run_gaps(runs[name])
    if results is None:
        gaps.append("results.json is missing: the study has not finished, so nothing is counted.")
    else:
        gaps += _contradictions(results, runs)
    return Study(
        info=info | {"config": info["tasks"]},
        runs=tuple(runs[name] for name in wanted if name in runs),
        results=results,
        gaps=tuple(gaps),
    )


def trial_names(info: dict[str, Any], task: str | None = None) -> list[str]:
    """Names of the runs that count, of one task or of all."""
    return [
        f"{of_task}-{name}-seed{seed}"
        for of_task in ([task] if task else info["tasks"])
        for name in info["types"]
        for seed in info["seeds"]
    ]


def sweep_names(info: dict[str, Any], task: str | None = None) -> list[str]:
    """Names of the runs that chose the learning rates, of one task or of all."""
    return [
        f"{of_task}-{name}-lr{rate:g}-seed{seed}"
        for of_task in ([task] if task else info["tasks"])
        for name in info["types"]
        for rate in info["learning_rates"]
        for seed in info["sweep_seeds"]
    ]


def part(study: Study, names: list[str]) -> Study:
    """The same study with these runs only."""
    return replace(study, runs=tuple(run for run in study.runs if run.name in names))


def _contradictions(results: dict[str, Any], runs: dict[str, StudyRun]) -> list[str]:
    """Summaries that contradict the runs they name."""
    gaps = []
    for task, entry in results["tasks"].items():
        for attention_type, summary in entry["types"].items():
            fields = ("runs", "solved_steps", "test_accuracy")
            if not isinstance(summary, dict) or any(key not in summary for key in fields):
                raise CheckpointError(
                    f"results.json: {task}, {attention_type} must hold {', '.join(fields)}, "
                    f"got {summary!r}."
                )
            for name, *recorded in zip(*(summary[key] for key in fields), strict=True):
                run = runs.get(name)
                if run is None or run.results is None:
                    continue
                if [run.result("solved_step"), run.result("test_accuracy")] != recorded:
                    gaps.append(f"results.json contradicts the run's own file on {name}.")
    return gaps
