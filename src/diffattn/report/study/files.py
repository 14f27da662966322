"""Read the folder of a study of models on text: what is there, and in words what is not."""

from pathlib import Path
from typing import Any

from diffattn.errors import CheckpointError
from diffattn.report.page.runs import (
    Study,
    StudyRun,
    is_number,
    read_checked,
    read_runs,
    require_fields,
    run_gaps,
)


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
    path = folder / "study.json"
    info = read_checked(path, types=list, seeds=list, config=dict, data=dict)
    require_fields(path, info["config"], model=dict, train=dict)
    if not all(isinstance(name, str) for name in info["types"]):
        raise CheckpointError(f"{path}: types must be names, got {info['types']}.")
    shared_costs: dict[str, Any] = {}
    if (folder / "costs.json").exists():
        shared_costs = read_checked(folder / "costs.json", runs=dict)["runs"]
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
        results = read_checked(folder / "results.json", types=dict, differences=list, statement=str)
    if (folder / "maps.json").exists():
        maps = read_checked(folder / "maps.json", tokens=list, layers=dict)
    gaps += _run_gaps(info, runs) + _file_gaps(runs, results, maps)
    return Study(info=info, runs=tuple(runs), results=results, maps=maps, gaps=tuple(gaps))


def _belongs(run: StudyRun, info: dict[str, Any]) -> bool:
    return run.attention_type in info["types"] and run.record.seed in info["seeds"]


def _run_gaps(info: dict[str, Any], runs: list[StudyRun]) -> list[str]:
    """Runs that are missing, unfinished or without a loss."""
    gaps = []
    for attention_type in info["types"]:
        for seed in info["seeds"]:
            here = [r for r in runs if (r.attention_type, r.record.seed) == (attention_type, seed)]
            if len(here) > 1:
                names = ", ".join(run.name for run in here)
                raise CheckpointError(
                    f"study: one run per type and seed is needed, got {names} for "
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
        summary = entry.get("validation_loss", {}) if isinstance(entry, dict) else {}
        names = entry.get("runs", []) if isinstance(entry, dict) else []
        for name, value in zip(names, summary.get("values", []), strict=False):
            if name in measured and abs(measured[name] - value) > 1e-9:
                gaps.append(
                    f"results.json gives {value} for {name}, but the run's own file "
                    f"gives {measured[name]}."
                )
    return gaps


def has_loss(run: StudyRun) -> bool:
    """Whether a run finished with a finite validation loss."""
    return is_number(run.result("validation_loss"))
