"""Read the folder of a study of models on text: what is there, and in words what is not."""

from pathlib import Path
from typing import Any, NotRequired, TypedDict

from diffattn.errors import CheckpointError
from diffattn.report.page.runs import (
    Study,
    StudyRun,
    is_number,
    read_checked,
    read_runs,
    run_gaps,
)


class _Settings(TypedDict):
    model: dict[str, Any]
    train: dict[str, Any]


class StudyInfo(TypedDict):
    """``study.json``."""

    types: list[str]
    seeds: list[int]
    config: _Settings
    data: dict[str, Any]


class _Costs(TypedDict):
    """``costs.json``: costs by name of the run."""

    runs: dict[str, dict[str, Any]]


class _Summary(TypedDict):
    """A mean with its interval; ends are null where there is one value only."""

    values: list[float]
    mean: float
    low: NotRequired[float | None]
    high: NotRequired[float | None]
    level: float
    n: NotRequired[int]


class _TypeSummary(TypedDict):
    runs: list[str]
    validation_loss: _Summary


class _Difference(_Summary):
    type: str
    baseline: str
    metric: str
    runs: list[list[str]]


class StudyResults(TypedDict):
    """``results.json``."""

    types: dict[str, _TypeSummary]
    differences: list[_Difference]
    statement: str
    protocol: NotRequired[dict[str, Any]]


class _MapsOfType(TypedDict):
    run: NotRequired[str]
    lam: NotRequired[float | list[float] | None]


class _Maps(TypedDict):
    """``maps.json``: maps of one example by attention type."""

    tokens: list[str]
    layers: dict[str, _MapsOfType]


def read_study(folder: Path) -> Study:
    """Read everything a report shows.

    Args:
        folder: Study folder with ``study.json``; every other file may be missing.

    Returns:
        The study; what is missing stands in ``gaps``.

    Raises:
        CheckpointError: ``study.json`` is missing, or a file is damaged, of another kind or of
            another schema version.
    """
    folder = Path(folder)
    info = read_checked(folder / "study.json", StudyInfo)
    shared_costs: dict[str, Any] = {}
    if (folder / "costs.json").exists():
        shared_costs = read_checked(folder / "costs.json", _Costs)["runs"]
    runs = read_runs(folder, shared_costs)
    foreign = [run.name for run in runs if not _belongs(run, info)]
    gaps = [f"Run {name} is in the folder but not part of this study." for name in foreign]
    runs = sorted(
        (run for run in runs if _belongs(run, info)),
        key=lambda run: (
            info["types"].index(run.attention_type),
            info["seeds"].index(run.record.seed),
        ),
    )
    results = maps = None
    if (folder / "results.json").exists():
        results = read_checked(folder / "results.json", StudyResults)
        require_one_run_per_value(results, folder / "results.json")
    if (folder / "maps.json").exists():
        maps = read_checked(folder / "maps.json", _Maps)
    gaps += _run_gaps(folder, info, runs) + _file_gaps(runs, results, maps)
    return Study(info=info, runs=tuple(runs), results=results, maps=maps, gaps=tuple(gaps))


def require_one_run_per_value(results: dict[str, Any], path: Path) -> None:
    """Refuse results that do not name the run, or the pair of runs, of every value.

    Raises:
        CheckpointError: They do not.
    """
    of_types = ((name, e["runs"], e["validation_loss"]) for name, e in results["types"].items())
    of_pairs = ((entry["type"], entry["runs"], entry) for entry in results["differences"])
    for name, runs, entry in (*of_types, *of_pairs):
        if len(runs) != len(entry["values"]):
            raise CheckpointError(
                f"{path}: {name} must name one run per value, got {len(runs)} runs and "
                f"{len(entry['values'])} values."
            )
    for entry in results["differences"]:
        if any(len(pair) != 2 for pair in entry["runs"]):
            raise CheckpointError(f"{path}: {entry['type']} must pair two runs, got other numbers.")


def _belongs(run: StudyRun, info: dict[str, Any]) -> bool:
    return run.attention_type in info["types"] and run.record.seed in info["seeds"]


def _run_gaps(folder: Path, info: dict[str, Any], runs: list[StudyRun]) -> list[str]:
    """Runs that are missing, unfinished or without a loss."""
    gaps = []
    for attention_type in info["types"]:
        for seed in info["seeds"]:
            here = [r for r in runs if (r.attention_type, r.record.seed) == (attention_type, seed)]
            if len(here) > 1:
                names = ", ".join(run.name for run in here)
                raise CheckpointError(
                    f"{folder}: one run.json per type and seed is needed, got {names} for "
                    f"{attention_type} with seed {seed}."
                )
            if not here:
                gaps.append(f"No run of {attention_type} with seed {seed} was found.")
                continue
            gaps += run_gaps(here[0])
            if here[0].results is not None and not has_loss(here[0]):
                gaps.append(f"Run {here[0].name} finished without a finite validation loss.")
    return gaps


def _file_gaps(
    runs: list[StudyRun], results: dict[str, Any] | None, maps: dict[str, Any] | None
) -> list[str]:
    """Missing study files, and summaries that contradict the runs they name."""
    gaps = []
    if maps is None:
        gaps.append("maps.json is missing: no attention maps are shown.")
    if results is None:
        gaps.append(
            "results.json is missing: the study has not finished. Means and intervals are "
            "computed here from the runs that have."
        )
        return gaps
    if not results.get("complete", True):
        gaps.append("results.json says that the study is not complete.")
    measured = {run.name: run.result("validation_loss") for run in runs if has_loss(run)}
    for entry in results["types"].values():
        for name, value in zip(entry["runs"], entry["validation_loss"]["values"], strict=True):
            if name in measured and abs(measured[name] - value) > 1e-9:
                gaps.append(
                    f"results.json gives {value} for {name}, but the run's own file "
                    f"gives {measured[name]}."
                )
    return gaps


def has_loss(run: StudyRun) -> bool:
    """Whether a run finished with a finite validation loss."""
    return is_number(run.result("validation_loss"))
