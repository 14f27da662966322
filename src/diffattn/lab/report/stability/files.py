"""Read the folder of a stability study: what is there, and in plain words what is not."""

from pathlib import Path
from typing import Annotated, Any, NotRequired, TypedDict

from diffattn.errors import CheckpointError, short
from diffattn.lab.records.fields import AtLeast, Probability
from diffattn.lab.report.page.runs import Study, StudyRun, read_checked, runs_by_name, study_of_runs

METRICS = {
    "loss": "Final validation loss",
    "loss_spike_share": "Loss spikes",
    "gradient_spike_share": "Gradient spikes",
    "clipped_share": "Clipped steps",
    "sensitivity": "Sensitivity to the rate",
}
"""Measures of ``results.json`` and their names; the last is one of all rates."""


class _Settings(TypedDict):
    model: dict[str, Any]
    train: dict[str, Any]


class _Info(TypedDict):
    """``study.json``."""

    types: Annotated[list[str], AtLeast(1)]
    seeds: Annotated[list[int], AtLeast(1)]
    learning_rates: Annotated[list[float], AtLeast(1)]
    config: _Settings
    data: dict[str, Any]


class _Summary(TypedDict):
    """One value per seed, their mean and its interval."""

    values: list[float]
    mean: float
    low: float | None
    high: float | None
    level: float


class _Rate(TypedDict):
    learning_rate: float
    runs: list[str]
    diverged: list[bool]
    diverged_steps: list[int | None]
    loss: _Summary
    loss_spike_share: _Summary
    gradient_spike_share: _Summary
    clipped_share: _Summary


class _Type(TypedDict):
    rates: list[_Rate]
    sensitivity: _Summary


class _Difference(_Summary):
    type: str
    baseline: str
    metric: str
    learning_rate: float | None
    p_value: Probability | None
    p_holm: float | None
    rates: NotRequired[Annotated[list[float], AtLeast(1)]]
    """What a mean is over."""
    why: NotRequired[str]
    """Why the difference says nothing; empty if it does."""


class _Definition(TypedDict):
    window: int
    deviations: float
    least_loss: float
    least_log_gradient: float


class _Verdict(TypedDict):
    informative: bool
    sentence: str
    margin: NotRequired[float]


class _Results(TypedDict):
    """``results.json``."""

    definition: _Definition
    types: dict[str, _Type]
    differences: list[_Difference]
    verdict: _Verdict
    statement: str
    protocol: NotRequired[dict[str, Any]]


def read_stability_study(folder: Path) -> Study:
    """Read everything the report of a stability study shows.

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
        results = read_checked(folder / "results.json", _Results)
        _require_whole(folder / "results.json", results, info)
    return study_of_runs(
        info, runs, run_names(info), results,
        lacks="nothing is counted", contradictions=_contradictions,
    )  # fmt: skip


def run_names(info: dict[str, Any]) -> list[str]:
    """Names of all runs, type by type, then from the smallest rate up."""
    return [
        f"{name}-lr{rate:g}-seed{seed}"
        for name in info["types"]
        for rate in info["learning_rates"]
        for seed in info["seeds"]
    ]


def _require_whole(path: Path, results: dict[str, Any], info: dict[str, Any]) -> None:
    """Every type of the study at every rate, and of every run one entry in each list."""
    for name in info["types"]:
        rates = [at["learning_rate"] for at in results["types"].get(name, {}).get("rates", [])]
        if rates != info["learning_rates"]:
            raise CheckpointError(
                f"{path}: types must hold {short(name)} at the rates of study.json, "
                f"got {short(rates)}."
            )
    for name, of_type in results["types"].items():
        for at in of_type["rates"]:
            sizes = {key: len(at[key]) for key in ("runs", "diverged", "diverged_steps")}
            sizes |= {key: len(at[key]["values"]) for key in METRICS if key in at}
            if len(set(sizes.values())) != 1:
                raise CheckpointError(
                    f"{path}: {short(name)} must hold one entry per run, got {sizes}."
                )


def _contradictions(results: dict[str, Any], runs: dict[str, StudyRun]) -> list[str]:
    """Divergence that contradicts the runs."""
    return [
        f"results.json says that {name} {'met a' if step is not None else 'met no'} number that is "
        "not finite, but the run's own file says otherwise."
        for of_type in results["types"].values()
        for at in of_type["rates"]
        for name, step in zip(at["runs"], at["diverged_steps"], strict=True)
        if name in runs
        and runs[name].results is not None
        and (step is None) == (runs[name].result("validation_loss") is None)
    ]
