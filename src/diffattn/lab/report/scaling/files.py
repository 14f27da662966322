"""Read the folder of a scaling study: what is there, and in plain words what is not."""

from pathlib import Path
from typing import Annotated, Any, Literal, NotRequired, TypedDict

from diffattn.errors import CheckpointError, short
from diffattn.lab.records.fields import AtLeast
from diffattn.lab.report.page.runs import (
    Study,
    StudyRun,
    is_number,
    read_checked,
    runs_by_name,
    study_of_runs,
)

AXES = {"parameters": "Parameters", "tokens": "Training tokens"}
"""Along which models grow, and their names."""
_PARTS = {"offset": {"a", "b", "c"}, "kaplan": {"a", "b"}}
"""Of the forms that a study fits."""


class _Settings(TypedDict):
    model: dict[str, Any]
    train: dict[str, Any]


class _Info(TypedDict):
    """``study.json``."""

    types: Annotated[list[str], AtLeast(1)]
    seeds: Annotated[list[int], AtLeast(1)]
    runs: Annotated[list[str], AtLeast(1)]
    config: _Settings
    data: dict[str, Any]


class _Ends(TypedDict):
    """A value and its interval."""

    mean: float
    low: float | None
    high: float | None
    level: float


class _Loss(_Ends):
    values: Annotated[list[float], AtLeast(1)]


class _Point(TypedDict):
    """One size and budget of one model."""

    x: Annotated[float, AtLeast(1)]
    parameters: int
    tokens: int
    runs: list[str]
    loss: _Loss


class _Fit(TypedDict):
    points: int
    parameters: dict[str, _Ends]
    r2: float | None
    max_error: float | None
    refused: str | None


class _Type(TypedDict):
    points: Annotated[list[_Point], AtLeast(1)]
    fit: _Fit


class _Equivalent(TypedDict):
    type: str
    baseline: str
    point: int
    x: float
    other_x: float | None
    loss: float | None
    ratio: float | None
    low: float | None
    high: float | None
    extrapolated: bool
    refused: str | None


class _Axis(TypedDict):
    form: Literal["offset", "kaplan"]
    read_at: int
    types: dict[str, _Type]
    equivalents: list[_Equivalent]


class _Axes(TypedDict):
    parameters: _Axis
    tokens: _Axis


class _Verdict(TypedDict):
    sentence: str


class _Results(TypedDict):
    """``results.json``."""

    axes: _Axes
    verdict: _Verdict
    statement: str
    protocol: NotRequired[dict[str, Any]]


def read_scaling_study(folder: Path) -> Study:
    """Read everything the report of a scaling study shows.

    Args:
        folder: Study folder with ``study.json``; every other file may be missing.

    Raises:
        CheckpointError: ``study.json`` is missing, or a file is damaged, of another kind or of
            another schema version.
    """
    folder = Path(folder)
    info = read_checked(folder / "study.json", _Info)
    runs, results = runs_by_name(folder), None
    if (folder / "results.json").exists():
        results = read_scaling_results(folder / "results.json")
        _require_whole(folder / "results.json", results, info)
    return study_of_runs(
        info, runs, list(dict.fromkeys(info["runs"])), results,
        lacks="nothing is fitted", contradictions=_contradictions,
    )  # fmt: skip


def read_scaling_results(path: Path) -> dict[str, Any]:
    """``results.json`` of a scaling study.

    Raises:
        CheckpointError: It is missing, damaged or foreign.
    """
    results = read_checked(path, _Results)
    for axis in AXES:
        wanted = _PARTS[results["axes"][axis]["form"]]
        for name, of_type in results["axes"][axis]["types"].items():
            parts = set(of_type["fit"]["parameters"])
            if parts != (wanted if of_type["fit"]["refused"] is None else set()):
                raise CheckpointError(
                    f"{path}: the fit of {short(name)} must have {', '.join(sorted(wanted))} or a "
                    f"reason why it was refused, got {short(sorted(parts))}."
                )
        for row in results["axes"][axis]["equivalents"]:
            if row["refused"] is None and None in (row["other_x"], row["loss"], row["ratio"]):
                raise CheckpointError(
                    f"{path}: an equivalent of {short(row['type'])} must have a ratio or a reason "
                    "why it was refused, got neither."
                )
    return results


def _require_whole(path: Path, results: dict[str, Any], info: dict[str, Any]) -> None:
    """Every type of the study along both axes, with as many points as others and a loss per run."""
    for axis in AXES:
        types = results["axes"][axis]["types"]
        if list(types) != info["types"]:
            raise CheckpointError(
                f"{path}: {axis} must hold the types of study.json, got {short(list(types))}."
            )
        counts = {len(of_type["points"]) for of_type in types.values()}
        ends = {row["point"] for row in results["axes"][axis]["equivalents"]}
        ends.add(results["axes"][axis]["read_at"])
        if len(counts) > 1 or not ends <= set(range(min(counts))):
            raise CheckpointError(
                f"{path}: all types must have as many points over {axis}, and equivalents be of "
                f"them, got {short(sorted(counts))}."
            )
        for name, of_type in types.items():
            for point in of_type["points"]:
                if len(point["runs"]) != len(point["loss"]["values"]):
                    raise CheckpointError(
                        f"{path}: {short(name)} must hold one loss per run, got "
                        f"{len(point['loss']['values'])} of {len(point['runs'])}."
                    )


def _contradictions(results: dict[str, Any], runs: dict[str, StudyRun]) -> list[str]:
    """Losses that are not those of the runs."""
    shown = {
        run: loss
        for axis in AXES
        for of_type in results["axes"][axis]["types"].values()
        for point in of_type["points"]
        for run, loss in zip(point["runs"], point["loss"]["values"], strict=True)
    }
    return [
        f"results.json says that {name} ended at {loss:.4f}, but the run's own file says otherwise."
        for name, loss in shown.items()
        if name in runs
        and is_number(recorded := runs[name].result("validation_loss"))
        and recorded != loss
    ]
