"""Runs of a study in memory, and how they are read; every kind of study shares them."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypedDict

from diffattn.files.io import read_json, read_jsonl
from diffattn.lab.records.fields import checked
from diffattn.lab.records.launches import read_launches
from diffattn.lab.records.run import SCHEMA_VERSION, RunRecord, require_schema

BASELINE = "softmax"
TEXT_SCHEMA = 2
"""Of ``results.json`` of a study of models on text."""


class _ModelConfig(TypedDict):
    attention_type: str


class _RunConfig(TypedDict):
    """Of ``run.json``."""

    model: _ModelConfig


class _MetricsRow(TypedDict):
    """Of ``metrics.jsonl``."""

    step: float


class _RunCosts(TypedDict):
    """``costs.json`` of a run."""

    run: str


class _LogFacts(TypedDict):
    """Of the finished ``metrics.jsonl``."""

    rows: int
    sha256: str


class _RunResults(TypedDict):
    """``results.json`` of a run."""

    run: str
    metrics: _LogFacts


@dataclass(frozen=True, kw_only=True)
class StudyRun:
    """One run of a study, as far as it got."""

    name: str
    """Of its folder, unique within the study. The record of a run that was copied from another
    study has the name that the run had there."""
    record: RunRecord
    metrics: list[dict[str, Any]] = field(default_factory=list)
    """Rows of ``metrics.jsonl``; empty if the run has not started."""
    results: dict[str, Any] | None
    """``results.json``, or ``None`` while the run is unfinished."""
    costs: dict[str, Any] | None
    continued: Sequence[str] = ()
    """Other commits at which it went on; the record has that of its first start."""

    @property
    def attention_type(self) -> str:
        """Of the model."""
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
    """``study.json``."""
    runs: tuple[StudyRun, ...]
    """In the order of the study's types, then of its seeds."""
    results: dict[str, Any] | None
    maps: dict[str, Any] | None = None
    gaps: tuple[str, ...] = ()
    """One plain sentence for everything that is missing or contradictory."""
    all_records: str | None = None
    """Where the rest lies, if this is the summary of a study; ``None`` for a whole folder."""

    @property
    def types(self) -> list[str]:
        """Attention types compared, in the order shown."""
        return list(self.info["types"])

    def runs_of(self, attention_type: str) -> list[StudyRun]:
        """Runs of one type, in seed order."""
        return [run for run in self.runs if run.attention_type == attention_type]


def study_kind(folder: Path) -> str:
    """What ``study.json`` says that the folder holds; ``"text"`` where it names no kind.

    Raises:
        CheckpointError: The file is missing or damaged.
    """
    info = read_json(Path(folder) / "study.json")
    return str(info.get("kind", "text")) if isinstance(info, dict) else "text"


def read_runs(folder: Path, shared_costs: dict[str, Any]) -> list[StudyRun]:
    """Every run of a study folder, in the order of their names.

    Args:
        folder: Study folder.
        shared_costs: Costs by name of the run, from the study's ``costs.json``; a run's own file
            comes first.

    Raises:
        CheckpointError: A file is damaged, of another kind or of another schema version.
    """
    paths = sorted((folder / "runs").glob("[!.]*/run.json"))  # not what a copy was cut off at
    return [_read_run(path.parent, shared_costs) for path in paths]


def _read_run(folder: Path, shared_costs: dict[str, Any]) -> StudyRun:
    record = read_run_record(folder)
    require_attention_type(record, folder / "run.json")
    results, costs = None, shared_costs.get(folder.name)
    if (folder / "results.json").exists():
        results = read_checked(folder / "results.json", _RunResults)
    metrics: list[dict[str, Any]] = []
    if (folder / "metrics.jsonl").exists():
        path, recorded = folder / "metrics.jsonl", results and results["metrics"]
        rows = enumerate(read_jsonl(path, recorded=recorded), start=1)
        metrics = [dict(checked(_MetricsRow, row, f"{path}:{line}")) for line, row in rows]
    if (folder / "costs.json").exists():
        costs = read_checked(folder / "costs.json", _RunCosts)
    commits = [row.get("commit") or "a commit not recorded" for row in read_launches(folder)]
    later = (commit for commit in commits if commit != record.commit)
    return StudyRun(
        name=folder.name, record=record, metrics=metrics, results=results, costs=costs,
        continued=list(dict.fromkeys(later)),
    )  # fmt: skip


def read_run_record(folder: Path) -> RunRecord:
    """Read ``run.json`` and check its fields.

    Raises:
        CheckpointError: The file is missing, damaged, of another kind or of another schema version.
    """
    return checked(RunRecord, vars(RunRecord.read(folder)), f"{folder / 'run.json'}")


def require_attention_type(record: RunRecord, path: Path) -> None:
    """Refuse a run whose model has no attention type.

    Raises:
        CheckpointError: It has none.
    """
    checked(_RunConfig, record.config, f"{path}: config")


def run_gaps(run: StudyRun) -> list[str]:
    """A sentence if the run has no results, or has lost its log."""
    if run.results is None:
        step = max((row["step"] for row in run.metrics), default=0)
        return [f"Run {run.name} has not finished: it stopped at step {step:,}."]
    return [] if run.metrics else [f"Run {run.name} has lost its metrics.jsonl: no curves."]


def is_number(value: Any) -> bool:
    """Whether a value from a file is a finite number."""
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


def finite_numbers(value: Any) -> list[float]:
    """A list of finite numbers from a file; empty if it is anything else."""
    return value if isinstance(value, list) and all(map(is_number, value)) else []


def read_checked(path: Path, kind: Any, schema: int = SCHEMA_VERSION) -> dict[str, Any]:
    """Read one JSON object; check its schema version, and its fields against a ``TypedDict``.

    Raises:
        CheckpointError: The file is missing, damaged, of another kind or of another schema version.
    """
    value = read_json(path)
    require_schema(value, path, schema)
    return dict(checked(kind, value, str(path)))


def runs_by_name(folder: Path) -> dict[str, StudyRun]:
    """Every run of a study folder, as :func:`read_runs`, by its name."""
    return {run.name: run for run in read_runs(folder, {})}


def study_of_runs(
    info: dict[str, Any],
    runs: dict[str, StudyRun],
    wanted: Sequence[str],
    results: dict[str, Any] | None,
    *,
    lacks: str,
    contradictions: Callable[[dict[str, Any], dict[str, StudyRun]], list[str]] | None = None,
) -> Study:
    """A study and its gaps: runs that are missing, foreign or unfinished, and false results.

    Args:
        info: ``study.json``.
        runs: From :func:`runs_by_name`.
        wanted: Names of the runs that belong to the study, in the order shown.
        results: ``results.json``; ``None`` if it is missing.
        lacks: What is missing with it, as in ``"nothing is counted"``.
        contradictions: From results and runs, a sentence for every contradiction.
    """
    gaps = [
        f"Run {name} is in the folder but not part of this study."
        for name in runs
        if name not in wanted
    ]
    for name in wanted:
        gaps += run_gaps(runs[name]) if name in runs else [f"Run {name} was not found."]
    if results is None:
        gaps.append(f"results.json is missing: the study has not finished, so {lacks}.")
    elif contradictions is not None:
        gaps += contradictions(results, runs)
    return Study(
        info=info,
        runs=tuple(runs[name] for name in wanted if name in runs),
        results=results,
        gaps=tuple(gaps),
    )
