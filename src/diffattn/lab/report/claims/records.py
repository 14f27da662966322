"""The records that claims are read from. Each of them may be missing."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from diffattn.errors import CheckpointError
from diffattn.lab.records.evaluations import (
    EVALUATION_MARKER,
    Comparison,
    EvalResult,
    evaluation_marker,
)
from diffattn.lab.records.results import BenchResult, read_benchmarks
from diffattn.lab.records.stored_runs import results_folder
from diffattn.lab.records.study_results import read_study_results
from diffattn.lab.report.page.runs import study_kind

PLACES = {
    "text": "published/text",
    "ablations": "published/ablations",
    "rank": "published/rank",
    "recall": "published/recall",
    "practical": "published/practical",
    "stability": "published/stability",
    "scaling": "published/scaling",
    "gradient-flow": "published/gradient_flow",
}
"""Kind of study -> folder of the committed study."""
EVALUATIONS = "published/evaluations"
"""Folder of evaluation folders. Their models have labels such as ``diff-seed0``."""
BENCHMARKS = "benchmarks/results"


@dataclass(frozen=True, kw_only=True)
class ClaimRecords:
    """The contents of all records."""

    studies: Mapping[str, Any] = field(default_factory=dict)
    """Kind of study -> its ``results.json``."""
    evaluations: tuple[EvalResult, ...] = ()
    floors: Mapping[tuple[str, str], str] = field(default_factory=dict)
    """Protocol and kind of model -> why its scores are uninformative, for example because it and
    the baseline guess, or have everything right."""
    benchmarks: tuple[BenchResult, ...] = ()


@dataclass(kw_only=True)
class RecordFolders:
    """Folders of records by kind, and their contents."""

    root: Path | None = None
    studies: dict[str, Path] = field(default_factory=dict)
    """Kind of study -> its folder."""
    evaluations: list[Path] = field(default_factory=list)
    benchmarks: list[Path] = field(default_factory=list)
    """Files of ``diffattn bench``."""
    records: ClaimRecords = field(default_factory=ClaimRecords)
    gaps: list[str] = field(default_factory=list)
    """A sentence for each record that was left out."""

    def name(self, path: Path) -> str:
        """The path as the page shows it: from the root, if it lies there."""
        if self.root is not None and path.is_relative_to(self.root):
            return str(path.relative_to(self.root))
        return str(path)

    @property
    def places(self) -> dict[str, str]:
        """Folder of a committed record -> its place on this page."""
        places = {PLACES[kind]: self.name(path) for kind, path in self.studies.items()}
        for place, paths in ((EVALUATIONS, self.evaluations), (BENCHMARKS, self.benchmarks)):
            if paths:
                places[place] = ", ".join(map(self.name, paths))
        return places


def committed_folders(root: Path) -> list[Path]:
    """All folders of finished records of a checkout."""
    studies = [root / place for place in PLACES.values()]
    markers = sorted((root / EVALUATIONS).glob(f"*/{EVALUATION_MARKER}"))
    benchmarks = [root / BENCHMARKS] if (root / BENCHMARKS).is_dir() else []
    finished = [path for path in studies if (path / "results.json").exists()]
    return [*finished, *(marker.parent for marker in markers), *benchmarks]


def read_claim_records(root: Path) -> ClaimRecords:
    """Read the records of a checkout; missing ones are left out.

    Raises:
        CheckpointError: A record is damaged or foreign, or does not fit the others.
    """
    folders = read_folders(committed_folders(root), root)
    if folders.gaps:
        raise CheckpointError(
            f"{root}: committed records must be whole and go together, got: {folders.gaps[0]}"
        )
    return folders.records


def read_folders(paths: Sequence[Path], root: Path | None = None) -> RecordFolders:
    """Read all folders. ``gaps`` names left-out folders: damaged, foreign or misfits.

    Args:
        paths: Folders of ``diffattn reproduce`` and ``diffattn evaluate``, and files of
            ``diffattn bench`` or folders of them.
        root: Names of paths are relative to this folder. Default: as they are given.
    """
    folders = RecordFolders(root=root)
    studies: dict[str, Any] = {}
    results: list[EvalResult] = []
    floors: dict[tuple[str, str], str] = {}
    benchmarks: list[BenchResult] = []
    for path in paths:
        try:
            if (path / "study.json").exists():
                _read_study(path, folders, studies)
            elif (path / EVALUATION_MARKER).exists():
                of_folder = _read_evaluations(path)
                floors |= _read_floors(path, of_folder)
                results += of_folder
                folders.evaluations.append(path)
            else:
                timings = read_benchmarks([path])
                if not timings:
                    raise CheckpointError(
                        "must hold study.json, evaluation.json or records of bench, got none."
                    )
                folders.benchmarks += timings
                benchmarks += timings.values()
        except CheckpointError as error:
            folders.gaps.append(f"{folders.name(path)} was left out: {error}")
    folders.records = ClaimRecords(
        studies=studies,
        evaluations=tuple(_select_comparable(results, folders.gaps)),
        floors=floors,
        benchmarks=tuple(benchmarks),
    )
    return folders


def _read_study(path: Path, folders: RecordFolders, studies: dict[str, Any]) -> None:
    kind = study_kind(path)
    if kind not in PLACES:
        raise CheckpointError(f"kind must be one of {', '.join(PLACES)}, got {kind}.")
    if kind in folders.studies:
        other = folders.name(folders.studies[kind])
        raise CheckpointError(f"there must be one study of {kind}, got {other}, too.")
    results = read_study_results(path)
    folders.studies[kind] = path
    if results is None:
        folders.gaps.append(f"{folders.name(path)} holds no results yet.")
    else:
        studies[kind] = results


def _read_evaluations(folder: Path) -> list[EvalResult]:
    names, results = evaluation_marker(folder), results_folder(folder)
    paths = [
        results / label / variant for label in names["models"] for variant in names["variants"]
    ]
    return [EvalResult.read(path) for path in paths if (path / "result.json").exists()]


def _read_floors(folder: Path, results: Iterable[EvalResult]) -> dict[tuple[str, str], str]:
    """Protocol and kind of model -> why the comparison over seeds is uninformative."""
    if not (folder / "comparison.json").exists():
        return {}
    protocols = {result.variant: result.protocol for result in results}
    floors = {}
    for pair in Comparison.read(folder).differences:
        word, _, why = pair.verdict.partition(": ")
        if pair.over == "seeds" and word == "uninformative" and pair.variant in protocols:
            floors[protocols[pair.variant], pair.model.partition("-seed")[0]] = why
    return floors


def _select_comparable(results: Sequence[EvalResult], gaps: list[str]) -> Iterable[EvalResult]:
    """Keep results of the newest protocol version and of the same items, one of each model.

    Other results cannot be compared or averaged. ``gaps`` gets a sentence for each.
    """
    newest: dict[str, int] = {}
    for result in results:
        newest[result.protocol] = max(newest.get(result.protocol, 0), result.version)
    first: dict[str, EvalResult] = {}
    weights_of: dict[tuple[str, Any], Any] = {}
    taken: set[tuple[str, Any]] = set()
    # Results over all items come first, so that a selection of items is left out.
    for result in sorted(results, key=lambda result: bool(result.selection)):
        label, weights = result.model.get("label"), result.model.get("weights")
        known = weights_of.get((result.protocol, label), weights)
        if result.version != newest[result.protocol]:
            why = f"version {result.version} of the protocol, not {newest[result.protocol]}"
        elif weights != known:
            why = f"its weights are {weights}, those of another result of {label} {known}"
        elif unlike := result.unlike(first.get(result.variant, result)):
            why = unlike
        elif (result.variant, label) in taken:
            why = "there is another one of the same weights"
        else:
            first.setdefault(result.variant, result)
            weights_of[result.protocol, label] = weights
            taken.add((result.variant, label))
            yield result
            continue
        gaps.append(f"{label}'s result of {result.variant} was left out: {why}.")
