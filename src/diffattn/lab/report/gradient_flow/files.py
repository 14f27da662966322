"""Read the folder of a gradient-flow study: what is there, and in plain words what is not."""

from pathlib import Path
from typing import Annotated, Any, NotRequired, TypedDict

from diffattn.errors import CheckpointError, short
from diffattn.lab.records.fields import AtLeast
from diffattn.lab.report.page.runs import Study, read_checked, runs_by_name, study_of_runs

BASE = "base"
"""The arm that changes nothing."""
NULL = "other seed"
"""In place of a type: the baseline itself with the next seed."""


class _Settings(TypedDict):
    model: dict[str, Any]
    train: dict[str, Any]


class _Info(TypedDict):
    """``study.json``."""

    types: Annotated[list[str], AtLeast(1)]
    types_of_arms: list[str]
    arms: dict[str, dict[str, Any]]
    phases: dict[str, Annotated[list[int], AtLeast(1)]]
    seeds: Annotated[list[int], AtLeast(1)]
    config: _Settings
    data: dict[str, Any]


class _Factor(TypedDict):
    """One factor per seed, their geometric mean and its interval."""

    values: Annotated[list[float], AtLeast(1)]
    mean: Annotated[float, AtLeast(0)]
    low: float | None
    high: float | None
    level: float


class _Ratio(_Factor):
    arm: str
    type: str
    baseline: str
    phase: str
    measure: str
    matrix: str


class _Head(TypedDict):
    arm: str
    type: str
    phase: str
    layer: int
    lambda_init: float
    head_rms: _Factor
    to_factor: _Factor
    norm_gain: _Factor


class _Judgement(TypedDict):
    id: str
    says: str
    bound: float
    values: list[float]
    mean: float | None
    low: float | None
    high: float | None
    phases: list[str]
    verdict: str
    why: str


class _Definition(TypedDict):
    level: float
    drift: float
    half: list[float]


class _Verdict(TypedDict):
    informative: bool
    sentence: str


class _Results(TypedDict):
    """``results.json``."""

    definition: _Definition
    ratios: list[_Ratio]
    heads: list[_Head]
    judgements: list[_Judgement]
    verdict: _Verdict
    statement: str
    protocol: NotRequired[dict[str, Any]]


def read_gradient_flow_study(folder: Path) -> Study:
    """Read everything the report of a gradient-flow study shows.

    Args:
        folder: Study folder with ``study.json``; every other file may be missing.

    Raises:
        CheckpointError: ``study.json`` is missing, or a file is damaged, of another kind or of
            another schema version.
    """
    folder = Path(folder)
    info = read_checked(folder / "study.json", _Info)
    if not info["phases"] or BASE not in info["arms"]:
        raise CheckpointError(
            f"{folder / 'study.json'}: must have phases and an arm {BASE!r}, "
            f"got {short(list(info['phases']))} and {short(list(info['arms']))}."
        )
    runs, results = runs_by_name(folder), None
    if (folder / "results.json").exists():
        results = read_checked(folder / "results.json", _Results)
        _require_known(folder / "results.json", results, info)
    return study_of_runs(info, runs, run_names(info), results, lacks="nothing is judged")


def run_names(info: dict[str, Any]) -> list[str]:
    """Names of all runs, arm by arm, then type by type."""
    return [
        f"{arm}-{name}-seed{seed}"
        for arm in info["arms"]
        for name in (info["types"] if arm == BASE else info["types_of_arms"])
        for seed in info["seeds"]
    ]


def _require_known(path: Path, results: dict[str, Any], info: dict[str, Any]) -> None:
    """Every entry is of an arm and a phase of the study, with one value per seed."""
    for entry in [*results["ratios"], *results["heads"]]:
        if entry["arm"] not in info["arms"] or entry["phase"] not in info["phases"]:
            raise CheckpointError(
                f"{path}: entries must be of arms and phases of study.json, "
                f"got {short(entry['arm'])}, {short(entry['phase'])}."
            )
    factors = [*results["ratios"]]
    for entry in results["heads"]:
        factors += [entry[key] for key in ("head_rms", "to_factor", "norm_gain")]
    counts = {len(factor["values"]) for factor in factors}
    if counts - {len(info["seeds"])}:
        raise CheckpointError(
            f"{path}: every entry must hold one value per seed of study.json, "
            f"{len(info['seeds'])}, got {short(sorted(counts))}."
        )
