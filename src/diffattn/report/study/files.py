"""Read a study folder: what is there, and in plain words what is not."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from diffattn.errors import CheckpointError
from diffattn.records.io import read_json, read_jsonl
from diffattn.records.run import RunRecord, require_schema

BASELINE = "softmax"


@dataclass(frozen=True, kw_only=True)
class StudyRun:
    """One run of a study, as far as it got."""

    record: RunRecord
    attention_type: str
    metrics: list[dict[str, Any]]
    """Rows of ``metrics.jsonl``; empty if the run has not started."""
    results: dict[str, Any] | None
    """``results.json``, or ``None`` while the run is unfinished."""
    costs: dict[str, Any] | None

    @property
    def name(self) -> str:
        """Name of the run, unique within its study."""
        return self.record.name

    def result(self, key: str) -> Any:
        """One field of ``results``; ``None`` if it is missing or the run is unfinished."""
        return (self.results or {}).get(key)


@dataclass(frozen=True, kw_only=True)
class Study:
    """A study folder in memory."""

    info: dict[str, Any]
    """``study.json``."""
    runs: tuple[StudyRun, ...]
    """In the order of the study's types, then of its seeds."""
    results: dict[str, Any] | None
    maps: dict[str, Any] | None
    gaps: tuple[str, ...]
    """One plain sentence for everything that is missing or contradictory. Not escaped."""

    @property
    def types(self) -> list[str]:
        """Attention types compared, in the order shown."""
        return list(self.info["types"])

    @property
    def differential_types(self) -> list[str]:
        """The types with a λ."""
        return [name for name in self.types if name != BASELINE]

    def runs_of(self, attention_type: str) -> list[StudyRun]:
        """Runs of one type, in seed order."""
        return [run for run in self.runs if run.attention_type == attention_type]


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
    found = sorted((folder / "runs").glob("*/run.json"))
    runs = [read_run(path.parent, shared_costs) for path in found]
    foreign = [run.name for run in runs if not _belongs(run, info)]
    gaps = [f"Run {name} is in the folder but not part of this study." for name in foreign]
    runs = sorted(
        (run for run in runs if _belongs(run, info)),
        key=lambda run: (info["types"].index(run.attention_type), info["seeds"].index(_seed(run))),
    )
    results = maps = None
    if (folder / "results.json").exists():
        results = read_checked(folder / "results.json", types=dict, differences=list, statement=str)
    if (folder / "maps.json").exists():
        maps = read_checked(folder / "maps.json", tokens=list, layers=dict)
    gaps += _run_gaps(info, runs) + _file_gaps(runs, results, maps)
    return Study(info=info, runs=tuple(runs), results=results, maps=maps, gaps=tuple(gaps))


def read_run(folder: Path, shared_costs: dict[str, Any]) -> StudyRun:
    """Read one run directory; ``shared_costs`` are those of the study's own ``costs.json``."""
    path, record = folder / "run.json", RunRecord.read(folder)
    mappings = ("config", "model", "backends", "versions", "hardware")
    require_fields(path, vars(record), name=str, **dict.fromkeys(mappings, dict))
    require_fields(path, record.config, model=dict)
    require_fields(path, record.config["model"], attention_type=str)
    metrics: list[dict[str, Any]] = []
    if (folder / "metrics.jsonl").exists():
        metrics = read_jsonl(folder / "metrics.jsonl")
        for number, row in enumerate(metrics, start=1):
            if not isinstance(row, dict) or not is_number(row.get("step")):
                raise CheckpointError(
                    f"{folder / 'metrics.jsonl'}:{number}: every row must hold a step, got {row}."
                )
    results, costs = None, shared_costs.get(record.name)
    if costs is not None:
        require_fields(folder.parent.parent / "costs.json", shared_costs, **{record.name: dict})
    if (folder / "results.json").exists():
        results = read_checked(folder / "results.json", run=str)
    if (folder / "costs.json").exists():
        costs = read_checked(folder / "costs.json", run=str)
    return StudyRun(
        record=record,
        attention_type=record.config["model"]["attention_type"],
        metrics=metrics,
        results=results,
        costs=costs,
    )


def is_number(value: Any) -> bool:
    """Whether a value from a file is a finite number."""
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


def read_checked(path: Path, **fields: type) -> dict[str, Any]:
    """Read one JSON object and check its schema version and the named fields."""
    value = read_json(path)
    require_schema(value, path)
    require_fields(path, value, **fields)
    return value


def require_fields(path: Path, value: Mapping[str, Any], **fields: type) -> None:
    """Check the kinds of the named fields of a file's contents."""
    for name, kind in fields.items():
        if not isinstance(value.get(name), kind):
            raise CheckpointError(
                f"{path}: {name} must be a {kind.__name__}, got {value.get(name)!r}."
            )


def _seed(run: StudyRun) -> int:
    return run.record.seed


def _belongs(run: StudyRun, info: dict[str, Any]) -> bool:
    return run.attention_type in info["types"] and _seed(run) in info["seeds"]


def _run_gaps(info: dict[str, Any], runs: list[StudyRun]) -> list[str]:
    """Runs that are missing, unfinished or without a loss."""
    gaps = []
    for attention_type in info["types"]:
        for seed in info["seeds"]:
            here = [r for r in runs if (r.attention_type, _seed(r)) == (attention_type, seed)]
            if len(here) > 1:
                names = ", ".join(run.name for run in here)
                raise CheckpointError(
                    f"study: one run per type and seed is needed, got {names} for "
                    f"{attention_type} with seed {seed}."
                )
            if not here:
                gaps.append(f"No run of {attention_type} with seed {seed} was found.")
            elif here[0].results is None:
                step = max((row["step"] for row in here[0].metrics), default=0)
                gaps.append(f"Run {here[0].name} has not finished: it stopped at step {step:,}.")
            elif not has_loss(here[0]):
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
