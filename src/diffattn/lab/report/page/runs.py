"""The runs of a study in memory, and how they are read, for all kinds of studies."""

from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from diffattn.errors import CheckpointError, short
from diffattn.files.io import read_json, read_jsonl
from diffattn.lab.records.run import SCHEMA_VERSION, RunRecord, read_launches, require_schema
from diffattn.lab.records.stored_runs import runs_folder
from diffattn.lab.records.study_results import read_study_results
from diffattn.lab.report.page.wording import brief_names, is_number


@dataclass(frozen=True, kw_only=True)
class StudyRun:
    """One run of a study, as far as it got."""

    name: str
    """Name of its folder, unique within the study. If the run was copied from another study, its
    record holds the name that it had there."""
    record: RunRecord
    metrics: list[dict[str, Any]]
    """Rows of ``metrics.jsonl``; empty if the run has not started."""
    results: dict[str, Any] | None
    """``results.json``, or ``None`` while the run is unfinished."""
    costs: dict[str, Any] | None
    continued: Sequence[str]
    """Other commits at which the run was continued; the record names the first start's commit."""

    @property
    def attention_type(self) -> str:
        """Attention type of the run's model."""
        return str(self.record.config["model"]["attention_type"])

    def result(self, key: str) -> Any:
        """One field of ``results``; ``None`` if it is missing or the run is unfinished."""
        return (self.results or {}).get(key)

    def series(self, metric: str) -> list[tuple[float, float]]:
        """Steps and values of one metric; rows without it are skipped."""
        return [(row["step"], row[metric]) for row in self.metrics if is_number(row.get(metric))]


@dataclass(frozen=True, kw_only=True)
class Study:
    """A study folder in memory."""

    info: dict[str, Any]
    """Content of ``study.json``."""
    runs: tuple[StudyRun, ...]
    """The study's runs, in the order in which the kind of study lists them."""
    results: dict[str, Any] | None
    maps: dict[str, Any] | None
    gaps: tuple[str, ...]
    """One plain sentence for everything that is missing or contradictory."""

    @property
    def recorded(self) -> dict[str, Any]:
        """``results``; empty while the study is unfinished."""
        return self.results or {}

    @property
    def types(self) -> list[str]:
        """Attention types compared, in the order shown."""
        return list(self.info["types"])

    def runs_of(self, model: str) -> list[StudyRun]:
        """Runs of one model: the runs whose names have it as a part between hyphens."""
        return [run for run in self.runs if model in run.name.split("-")]


@contextmanager
def records_named_in_errors(*records: Path) -> Iterator[None]:
    """Turn errors that a wrong value in a record causes into one error that names the records."""
    try:
        with np.errstate(over="raise", invalid="raise"):  # NumPy would warn and go on with NaN
            yield
    except (
        ArithmeticError,
        AttributeError,
        LookupError,
        RecursionError,
        TypeError,
        ValueError,
    ) as error:
        raise CheckpointError(
            f"{' and '.join(map(str, records))}: study.json, results.json, costs.json, "
            "counts.json, maps.json, and run.json and metrics.jsonl of every run must be records "
            f"of this version, got {type(error).__name__}: {short(str(error))}."
        ) from error


def study_kind(folder: Path) -> str:
    """The kind of study that ``study.json`` names; ``"text"`` if it names none."""
    info = read_json(folder / "study.json")
    return str(info.get("kind", "text")) if isinstance(info, dict) else "text"


def _read_run(folder: Path, shared_costs: dict[str, Any]) -> StudyRun:
    """Read a run. Without ``costs.json`` it takes its costs from the study's ``costs.json``."""
    record, results, metrics = RunRecord.read(folder), None, []
    if (folder / "results.json").exists():
        results = read_json(folder / "results.json")
    if (folder / "metrics.jsonl").exists():
        metrics = read_jsonl(folder / "metrics.jsonl", recorded=results and results["metrics"])
    costs = shared_costs.get(folder.name)
    if (folder / "costs.json").exists():
        costs = read_json(folder / "costs.json")
    commits = [row.get("commit") or "a commit not recorded" for row in read_launches(folder)]
    return StudyRun(
        name=folder.name,
        record=record,
        metrics=metrics,
        results=results,
        costs=costs,
        continued=list(dict.fromkeys(commit for commit in commits if commit != record.commit)),
    )


def _read_versioned(path: Path) -> dict[str, Any]:
    value = read_json(path)
    require_schema(value, path, SCHEMA_VERSION)
    return value


def read_study_of_runs(
    folder: Path,
    run_names: Callable[[dict[str, Any], Collection[str], dict[str, Any] | None], Sequence[str]],
) -> Study:
    """Read a study. Its ``gaps`` name runs that are missing, foreign or unfinished.

    ``run_names`` returns the names of the study's runs, in the order shown, from ``study.json``,
    the names of all runs in the folder, and ``results.json`` or ``None``.
    """
    info, results = _read_versioned(folder / "study.json"), read_study_results(folder)
    costs, maps = (
        _read_versioned(path) if path.exists() else None
        for path in (folder / "costs.json", folder / "maps.json")
    )
    shared_costs = costs["runs"] if costs else {}
    paths = sorted(runs_folder(folder).glob("[!.]*/run.json"))  # no unfinished copies
    runs = {path.parent.name: _read_run(path.parent, shared_costs) for path in paths}
    names = run_names(info, runs, results)
    gaps = [f"Run {x} is in the folder but not part of this study." for x in runs if x not in names]
    missing = brief_names(name for name in names if name not in runs)
    gaps += [f"Run {name} was not found." for name in missing]
    shown = tuple(runs[name] for name in names if name in runs)
    for run in shown:
        if run.results is None:
            step = max((row["step"] for row in run.metrics), default=0)
            gaps.append(f"Run {run.name} has not finished: it stopped at step {step:,}.")
        elif not run.metrics:
            gaps.append(f"Run {run.name} has lost its metrics.jsonl: no curves.")
    if results is None:
        gaps.append("results.json is missing: the study has not finished.")
    return Study(info=info, runs=shown, results=results, maps=maps, gaps=tuple(gaps))
