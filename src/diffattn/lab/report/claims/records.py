"""The records that claims are read from. Each of them may be missing."""

from collections.abc import Iterable, Sequence
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


@dataclass(kw_only=True)
class ClaimRecords:
    """The contents of all records, and the folders that they were read from."""

    root: Path | None = None
    studies: dict[str, Any] = field(default_factory=dict)
    study_folders: dict[str, Path] = field(default_factory=dict)
    """Kind of study -> its folder, also of an unfinished study."""
    evaluations: list[EvalResult] = field(default_factory=list)
    evaluation_folders: list[Path] = field(default_factory=list)
    floors: dict[tuple[str, str], str] = field(default_factory=dict)
    """Protocol and kind of model -> why its scores are uninformative, for example because it and
    the baseline guess, or have everything right."""
    benchmarks: dict[Path, BenchResult] = field(default_factory=dict)
    """File of ``diffattn bench`` -> its content."""
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
        places = {PLACES[kind]: self.name(path) for kind, path in self.study_folders.items()}
        for place, paths in ((EVALUATIONS, self.evaluation_folders), (BENCHMARKS, self.benchmarks)):
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
    """Read the records of a checkout; missing ones are left out. None may be damaged or misfit."""
    records = read_folders(committed_folders(root), root)
    if records.gaps:
        raise CheckpointError(
            f"{root}: committed records must be whole and go together, got: {records.gaps[0]}"
        )
    return records


def read_folders(paths: Sequence[Path], root: Path | None = None) -> ClaimRecords:
    """Read folders of ``reproduce`` and ``evaluate``, and files of ``bench`` or folders of them.

    ``gaps`` names left-out folders: damaged, foreign or misfits.
    """
    records = ClaimRecords(root=root)
    for path in paths:
        try:
            if (path / "study.json").exists():
                _read_study(path, records)
            elif (path / EVALUATION_MARKER).exists():
                _read_evaluations(path, records)
            else:
                timings = read_benchmarks([path])
                if not timings:
                    raise CheckpointError(
                        "must hold study.json, evaluation.json or records of bench, got none."
                    )
                records.benchmarks |= timings
        except CheckpointError as error:
            records.gaps.append(f"{records.name(path)} was left out: {error}")
    records.evaluations = list(_select_comparable(records.evaluations, records.gaps))
    return records


def _read_study(path: Path, records: ClaimRecords) -> None:
    kind = study_kind(path)
    if kind not in PLACES:
        raise CheckpointError(f"kind must be one of {', '.join(PLACES)}, got {kind}.")
    if kind in records.study_folders:
        other = records.name(records.study_folders[kind])
        raise CheckpointError(f"there must be one study of {kind}, got {other}, too.")
    results = read_study_results(path)
    records.study_folders[kind] = path
    if results is None:
        records.gaps.append(f"{records.name(path)} holds no results yet.")
    else:
        records.studies[kind] = results


def _read_evaluations(folder: Path, records: ClaimRecords) -> None:
    names, stored = evaluation_marker(folder), results_folder(folder)
    paths = [stored / label / name for label in names["models"] for name in names["variants"]]
    results = [EvalResult.read(path) for path in paths if (path / "result.json").exists()]
    protocols = {result.variant: result.protocol for result in results}
    has_comparison = (folder / "comparison.json").exists()
    for pair in Comparison.read(folder).differences if has_comparison else ():
        word, _, why = pair.verdict.partition(": ")
        if pair.over == "seeds" and word == "uninformative" and pair.variant in protocols:
            kind = pair.model.partition("-seed")[0]
            records.floors[protocols[pair.variant], kind] = why
    records.evaluations += results
    records.evaluation_folders.append(folder)


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
