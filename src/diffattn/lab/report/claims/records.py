"""The committed records that claims are read from; every one of them may be missing."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from diffattn.lab.records.evaluations import Comparison, EvalResult, evaluation_marker
from diffattn.lab.records.results import BenchResult
from diffattn.lab.records.run import SCHEMA_VERSION
from diffattn.lab.records.stored_runs import results_folder
from diffattn.lab.report.page.runs import TEXT_SCHEMA, read_versioned

TEXT = "published/text"
ABLATIONS = "published/ablations"
RANK = "published/rank"
"""Studies of rows: as of text, with one learning rate."""
RECALL = "published/recall"
STABILITY = "published/stability"
SCALING = "published/scaling"
GRADIENT_FLOW = "published/gradient_flow"
EVALUATIONS = "published/evaluations"
"""Folders of ``diffattn evaluate``; models are called ``diff-seed0`` and the like."""
BENCHMARKS = "benchmarks/results"


@dataclass(frozen=True, kw_only=True)
class ClaimRecords:
    """What has been measured; ``None`` or empty where nothing has."""

    text: Mapping[str, Any] | None = None
    """A study by ``matched_comparison``."""
    ablations: Mapping[str, Any] | None = None
    rank: Mapping[str, Any] | None = None
    recall: Mapping[str, Any] | None = None
    stability: Mapping[str, Any] | None = None
    scaling: Mapping[str, Any] | None = None
    gradient_flow: Mapping[str, Any] | None = None
    evaluations: tuple[EvalResult, ...] = ()
    floors: Mapping[tuple[str, str], str] = field(default_factory=dict)
    """Protocol, and kind of model compared with the baseline, to why their scores tell nothing:
    neither is above guessing, or both have everything right."""
    benchmarks: tuple[BenchResult, ...] = ()


def records_of_kind(kind: str, folder: Path) -> Mapping[str, Any] | None:
    """What claims read of one study; ``None`` if it has not finished.

    Args:
        kind: A key of :data:`STUDIES`.
        folder: Study folder.

    Raises:
        CheckpointError: A file is damaged, of another kind or of another schema version.
    """
    return _read_results(folder, _SCHEMAS[kind])


def read_evaluations(folder: Path) -> list[EvalResult]:
    """Every finished result of one evaluation folder.

    Raises:
        CheckpointError: A file is damaged, of another kind or of another schema version.
    """
    names, results = evaluation_marker(folder), results_folder(folder)
    paths = [
        results / label / variant for label in names["models"] for variant in names["variants"]
    ]
    return [EvalResult.read(path) for path in paths if (path / "result.json").exists()]


def read_floors(folder: Path, results: Iterable[EvalResult]) -> dict[tuple[str, str], str]:
    """What the comparison of an evaluation folder says tells nothing, over seeds.

    Args:
        folder: Evaluation folder.
        results: Of it.

    Raises:
        CheckpointError: ``comparison.json`` is damaged, of another kind or schema version.
    """
    if not (folder / "comparison.json").exists():
        return {}
    protocols = {result.variant: result.protocol for result in results}
    floors = {}
    for of in Comparison.read(folder).differences:
        word, _, why = of.verdict.partition(": ")
        if of.over == "seeds" and word == "uninformative" and of.variant in protocols:
            floors[protocols[of.variant], of.model.partition("-seed")[0]] = why
    return floors


def _read_results(folder: Path, schema: int) -> dict[str, Any] | None:
    path = folder / "results.json"
    return read_versioned(path, schema) if path.exists() else None


_SCHEMAS = {
    "text": TEXT_SCHEMA,
    "ablations": TEXT_SCHEMA,
    "rank": TEXT_SCHEMA,
    "recall": SCHEMA_VERSION,
    "stability": SCHEMA_VERSION,
    "scaling": SCHEMA_VERSION,
    "gradient-flow": SCHEMA_VERSION,
}
_PLACES = (TEXT, ABLATIONS, RANK, RECALL, STABILITY, SCALING, GRADIENT_FLOW)
STUDIES = dict(zip(_SCHEMAS, _PLACES, strict=True))
"""Kinds of studies to where their committed records lie."""
