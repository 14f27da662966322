"""Read the folder of a recall study: what is there, and in plain words what is not."""

from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any, NotRequired, TypedDict

from diffattn.errors import CheckpointError
from diffattn.records.fields import AtLeast
from diffattn.records.io import read_json
from diffattn.report.page.runs import (
    Study,
    StudyRun,
    read_checked,
    read_runs,
    run_gaps,
)

_PER_TRIAL = ("runs", "solved_steps", "steps", "test_accuracy")


class _Train(TypedDict):
    batch_tokens: int
    seq_len: Annotated[int, AtLeast(1)]


class _TaskSettings(TypedDict):
    name: NotRequired[str]
    noise_ratio: NotRequired[float]


class _Settings(TypedDict):
    model: dict[str, Any]
    train: _Train
    task: _TaskSettings


class _Info(TypedDict):
    """``study.json``."""

    types: list[str]
    seeds: list[int]
    sweep_seeds: list[int]
    learning_rates: list[float]
    tasks: dict[str, _Settings]


class _Share(TypedDict):
    low: float
    high: float


class _Swept(TypedDict):
    """A run of the sweep."""

    run: str
    learning_rate: float
    solved_step: int | None
    steps: int
    validation_loss: float | None


class _TypeSummary(TypedDict):
    learning_rate: float
    sweep: list[_Swept]
    runs: Annotated[list[str], AtLeast(1)]
    trials: int
    solved: int
    solved_share: _Share
    solved_steps: list[int | None]
    steps: list[int]
    test_accuracy: list[float]
    test_by_query: list[float]
    test_by_depth: NotRequired[dict[str, float]]


class _Test(TypedDict):
    types: list[str]
    fisher_exact: float
    log_rank: float


class _TaskResults(TypedDict):
    ceilings: dict[str, float]
    types: dict[str, _TypeSummary]
    tests: list[_Test]


class _Results(TypedDict):
    """``results.json``."""

    tasks: dict[str, _TaskResults]
    statement: str
    protocol: NotRequired[dict[str, Any]]


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
    info = read_checked(folder / "study.json", _Info)
    runs = {run.name: run for run in read_runs(folder, {})}
    wanted = [*trial_names(info), *sweep_names(info)]
    results = None
    if (folder / "results.json").exists():
        results = read_checked(folder / "results.json", _Results)
        _require_whole(folder / "results.json", results, info)
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


def _require_whole(path: Path, results: dict[str, Any], info: dict[str, Any]) -> None:
    """Every task of the study, and of every trial one entry in each list."""
    for task in info["tasks"]:
        if task not in results["tasks"]:
            raise CheckpointError(
                f"{path}: tasks must be those of study.json, got {list(results['tasks'])}."
            )
    for task, entry in results["tasks"].items():
        for name, summary in entry["types"].items():
            sizes = {key: len(summary[key]) for key in _PER_TRIAL}
            if len(set(sizes.values())) != 1:
                raise CheckpointError(
                    f"{path}: {task}, {name} must hold one entry per trial, got {sizes}."
                )


def _contradictions(results: dict[str, Any], runs: dict[str, StudyRun]) -> list[str]:
    """Summaries that contradict the runs they name."""
    gaps = []
    for entry in results["tasks"].values():
        for summary in entry["types"].values():
            shown = (summary[key] for key in ("runs", "solved_steps", "test_accuracy"))
            for name, *recorded in zip(*shown, strict=True):
                run = runs.get(name)
                if run is None or run.results is None:
                    continue
                if [run.result("solved_step"), run.result("test_accuracy")] != recorded:
                    gaps.append(f"results.json contradicts the run's own file on {name}.")
    return gaps
