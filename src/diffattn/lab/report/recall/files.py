"""Read the folder of a recall study: what is there, and in plain words what is not."""

from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any, NotRequired, TypedDict

from diffattn.errors import CheckpointError
from diffattn.lab.records.fields import AtLeast, Probability
from diffattn.lab.report.page.runs import Study, StudyRun, read_checked, runs_by_name, study_of_runs

VERSION = 5
"""Of the protocol ``recall_study`` whose records are shown. A control that names itself as the one
whose rate it uses has a sweep and all seeds: every one that attends."""
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


class _Control(TypedDict):
    like: str
    """The member whose learning rate it uses."""


class _Info(TypedDict):
    """``study.json``."""

    types: list[str]
    seeds: list[int]
    sweep_seeds: list[int]
    learning_rates: list[float]
    controls: dict[str, _Control]
    control_seeds: int
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


class _Counts(TypedDict):
    """Of a control; a type has more."""

    learning_rate: float
    parameter_difference: int
    runs: Annotated[list[str], AtLeast(1)]
    trials: int
    solved: int
    solved_share: _Share
    solved_steps: list[int | None]
    steps: list[int]
    test_accuracy: list[float]
    test_by_query: list[float]
    test_by_depth: NotRequired[dict[str, float]]
    largest_write: float


class _ControlSummary(_Counts):
    like: str
    sweep: NotRequired[list[_Swept]]
    inside: NotRequired[bool | None]


class _TypeSummary(_Counts):
    sweep: list[_Swept]
    inside: bool | None


class _Test(TypedDict):
    types: list[str]
    fisher_exact: Probability
    fisher_exact_holm: Probability
    log_rank: Probability
    log_rank_exact: NotRequired[bool]
    log_rank_holm: Probability


class _Claim(TypedDict):
    verdict: str
    sentence: str


class _Leak(TypedDict):
    limit: float
    highest: float | None
    leaks: bool | None


class _TaskResults(TypedDict):
    ceilings: dict[str, float]
    types: dict[str, _TypeSummary]
    controls: dict[str, _ControlSummary]
    tests: list[_Test]
    control_tests: list[_Test]
    leak: _Leak
    can: _Claim
    sooner: _Claim


class _Results(TypedDict):
    """``results.json``."""

    tasks: dict[str, _TaskResults]
    statement: str
    protocol: dict[str, Any]


class _Head(TypedDict):
    """What every version of ``results.json`` holds."""

    protocol: dict[str, Any]


def read_recall_study(folder: Path) -> Study:
    """Read everything the report of a recall study shows.

    Args:
        folder: Study folder with ``study.json``; every other file may be missing.

    Returns:
        The study, its trials first and then its sweep, each in the order they are made.

    Raises:
        CheckpointError: ``study.json`` is missing, or a file is damaged, of another kind, of
            another schema version or of another version of the protocol.
    """
    folder = Path(folder)
    results = None
    if (folder / "results.json").exists():
        _require_version(folder / "results.json")
        results = read_checked(folder / "results.json", _Results)
    info = read_checked(folder / "study.json", _Info)
    if results is not None:
        _require_whole(folder / "results.json", results, info)
    runs = runs_by_name(folder)
    info["swept"] = _swept(info, results, runs)
    return study_of_runs(
        info | {"config": info["tasks"]}, runs, [*trial_names(info), *info["swept"]], results,
        lacks="nothing is counted", contradictions=_contradictions,
    )  # fmt: skip


def members(info: dict[str, Any]) -> list[str]:
    """The types, then the controls."""
    return [*info["types"], *info["controls"]]


def swept_members(info: dict[str, Any]) -> list[str]:
    """Members with a learning rate of their own and all seeds."""
    return [*info["types"], *(name for name, of in info["controls"].items() if of["like"] == name)]


def trial_names(
    info: dict[str, Any], task: str | None = None, names: Sequence[str] | None = None
) -> list[str]:
    """Names of the runs that count, of one task or of all, of some members or of all."""
    swept = swept_members(info)
    return [
        f"{of_task}-{name}-seed{seed}"
        for of_task in ([task] if task else info["tasks"])
        for name in (members(info) if names is None else names)
        for seed in info["seeds"][: None if name in swept else info["control_seeds"]]
    ]


def sweep_names(info: dict[str, Any], task: str) -> list[str]:
    """Names of the runs that chose the learning rates of a task, extensions with them."""
    return [name for name in info["swept"] if name.startswith(f"{task}-")]


def _swept(info: dict[str, Any], results: dict[str, Any] | None, runs: Iterable[str]) -> list[str]:
    """Names of the runs of the sweep: what was planned, what was counted, what lies there."""
    names: dict[str, None] = {}
    planned = info["learning_rates"] if len(info["learning_rates"]) > 1 else []
    for task in info["tasks"]:
        for kind in swept_members(info):
            counted = [] if results is None else _tries(results["tasks"][task], kind)
            names |= dict.fromkeys(
                f"{task}-{kind}-lr{rate:g}-seed{seed}"
                for rate in planned
                for seed in info["sweep_seeds"]
            )
            names |= dict.fromkeys(run["run"] for run in counted)
            names |= dict.fromkeys(name for name in runs if name.startswith(f"{task}-{kind}-lr"))
    return list(names)


def _tries(entry: dict[str, Any], name: str) -> list[dict[str, Any]]:
    """The sweep of a member, if it has one."""
    return list({**entry["types"], **entry["controls"]}[name].get("sweep", ()))


def part(study: Study, names: list[str]) -> Study:
    """The same study with these runs only."""
    return replace(study, runs=tuple(run for run in study.runs if run.name in names))


def _require_version(path: Path) -> None:
    """Two versions of a protocol must not stand in one table."""
    recorded = read_checked(path, _Head)["protocol"].get("version")
    if recorded != VERSION:
        raise CheckpointError(
            f"{path}: the protocol's version must be {VERSION}, got {recorded!r:.60}. "
            "Run the study again in another folder."
        )


def _require_whole(path: Path, results: dict[str, Any], info: dict[str, Any]) -> None:
    """Every task of the study, and of every trial one entry in each list."""
    for task in info["tasks"]:
        if task not in results["tasks"]:
            raise CheckpointError(
                f"{path}: tasks must be those of study.json, got {list(results['tasks'])}."
            )
    for task, entry in results["tasks"].items():
        for key in ("types", "controls"):
            if list(entry[key]) != list(info[key]):
                raise CheckpointError(
                    f"{path}: {task} must hold the {key} of study.json, got {list(entry[key])}."
                )
        for name, summary in {**entry["types"], **entry["controls"]}.items():
            sizes = {key: len(summary[key]) for key in _PER_TRIAL}
            if len(set(sizes.values())) != 1:
                raise CheckpointError(
                    f"{path}: {task}, {name} must hold one entry per trial, got {sizes}."
                )


def _contradictions(results: dict[str, Any], runs: dict[str, StudyRun]) -> list[str]:
    """Summaries that contradict the runs they name."""
    gaps = []
    for entry in results["tasks"].values():
        for summary in (*entry["types"].values(), *entry["controls"].values()):
            shown = (summary[key] for key in ("runs", "solved_steps", "test_accuracy"))
            for name, *recorded in zip(*shown, strict=True):
                run = runs.get(name)
                if run is None or run.results is None:
                    continue
                if [run.result("solved_step"), run.result("test_accuracy")] != recorded:
                    gaps.append(f"results.json contradicts the run's own file on {name}.")
    return gaps
