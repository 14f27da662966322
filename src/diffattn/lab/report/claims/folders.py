"""The records that claims are read from, wherever they lie: sorted by kind, never mixed."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from diffattn.errors import CheckpointError
from diffattn.lab.records.evaluations import EVALUATION_MARKER, EvalResult
from diffattn.lab.records.results import BenchResult
from diffattn.lab.report.claims.records import (
    BENCHMARKS,
    EVALUATIONS,
    STUDIES,
    ClaimRecords,
    read_evaluations,
    read_floors,
    records_of_kind,
)
from diffattn.lab.report.page.runs import study_kind


@dataclass(kw_only=True)
class SortedFolders:
    """Folders by what they hold."""

    studies: dict[str, Path] = field(default_factory=dict)
    """One per kind."""
    evaluations: list[Path] = field(default_factory=list)
    benchmarks: list[Path] = field(default_factory=list)
    """Files."""
    records: ClaimRecords = field(default_factory=ClaimRecords)
    """What claims read of them."""
    lies_at: dict[str, str] = field(default_factory=dict)
    """Folder of a record under the repository to where it lies here."""
    gaps: list[str] = field(default_factory=list)
    """What was left out, and why, a sentence each."""
    root: Path | None = None

    def name(self, path: Path) -> str:
        """How the page names a path."""
        if self.root is not None and path.is_relative_to(self.root):
            return str(path.relative_to(self.root))
        return str(path)


def committed_folders(root: Path) -> list[Path]:
    """Every finished record of a checkout.

    Args:
        root: Folder with ``published/`` and ``benchmarks/``.
    """
    studies = [root / place for place in STUDIES.values()]
    evaluations = sorted(
        path.parent for path in (root / EVALUATIONS).glob(f"*/{EVALUATION_MARKER}")
    )
    found = [*(path for path in studies if (path / "results.json").exists()), *evaluations]
    return [*found, root / BENCHMARKS] if (root / BENCHMARKS).is_dir() else found


def read_claim_records(root: Path) -> ClaimRecords:
    """Read what lies under a checkout; what is missing is left out.

    Args:
        root: Folder with ``published/`` and ``benchmarks/``.

    Raises:
        CheckpointError: A record is damaged or foreign, or does not go with the others.
    """
    found = sort_folders(committed_folders(root), root)
    if found.gaps:
        raise CheckpointError(
            f"{root}: committed records must be whole and go together, got: {found.gaps[0]}"
        )
    return found.records


def sort_folders(folders: Sequence[Path], root: Path | None = None) -> SortedFolders:
    """Read every folder; what is damaged, foreign or does not fit is named and left out.

    Args:
        folders: Of ``diffattn reproduce`` and ``diffattn evaluate``, and files of ``diffattn
            bench`` or folders of them.
        root: Paths are named from here. Default: as they are.
    """
    found = SortedFolders(root=root)
    of_kind: dict[str, Any] = {}
    results: list[EvalResult] = []
    floors: dict[tuple[str, str], str] = {}
    bench: list[BenchResult] = []
    for folder in folders:
        try:
            if (folder / "study.json").exists():
                _take_study(folder, found, of_kind)
            elif (folder / EVALUATION_MARKER).exists():
                of_folder = read_evaluations(folder)
                floors |= read_floors(folder, of_folder)
                results += of_folder
                found.evaluations.append(folder)
            else:
                bench += _bench(folder, found)
        except CheckpointError as error:
            found.gaps.append(f"{found.name(folder)} was left out: {error}")
    found.records = ClaimRecords(
        **of_kind,
        evaluations=tuple(_alike(results, found.gaps)),
        floors=floors,
        benchmarks=tuple(bench),
    )
    found.lies_at |= {STUDIES[kind]: found.name(path) for kind, path in found.studies.items()}
    if found.evaluations:
        found.lies_at[EVALUATIONS] = ", ".join(map(found.name, found.evaluations))
    if found.benchmarks:
        found.lies_at[BENCHMARKS] = ", ".join(map(found.name, found.benchmarks))
    return found


def _take_study(folder: Path, found: SortedFolders, of_kind: dict[str, Any]) -> None:
    kind = study_kind(folder)
    if kind not in STUDIES:
        raise CheckpointError(f"kind must be one of {', '.join(STUDIES)}, got {kind}.")
    if kind in found.studies:
        raise CheckpointError(
            f"there must be one study of {kind}, got {found.name(found.studies[kind])}, too."
        )
    of_kind[kind.replace("-", "_")] = of = records_of_kind(kind, folder)
    found.studies[kind] = folder
    if of is None:
        found.gaps.append(f"{found.name(folder)} holds no results yet.")


def _bench(path: Path, found: SortedFolders) -> Iterable[BenchResult]:
    files = sorted(path.glob("*.json")) if path.is_dir() else [path]
    if not files:
        raise CheckpointError(
            "must hold study.json, evaluation.json or records of bench, got none."
        )
    results = [BenchResult.read(file) for file in files]
    found.benchmarks += files
    return results


def _alike(results: Sequence[EvalResult], gaps: list[str]) -> Iterable[EvalResult]:
    """Those of one protocol version and the same questions, all of them or as many, and one result
    of each model: others cannot be compared, nor averaged."""
    newest = {of.protocol: 0 for of in results}
    for of in results:
        newest[of.protocol] = max(newest[of.protocol], of.version)
    first: dict[str, EvalResult] = {}
    weights: dict[tuple[str, Any], Any] = {}
    taken: set[tuple[str, Any]] = set()
    for of in sorted(results, key=lambda of: bool(of.selection)):  # all questions before a few
        label, found = of.model.get("label"), of.model.get("weights")
        known = weights.get((of.protocol, label), found)
        if of.version != newest[of.protocol]:
            why = f"version {of.version} of the protocol, not {newest[of.protocol]}"
        elif found != known:
            why = f"its weights are {found}, those of another result of {label} {known}"
        elif unlike := of.unlike(first.get(of.variant, of)):
            why = unlike
        elif (of.variant, label) in taken:
            why = "there is another one of the same weights"
        else:
            first.setdefault(of.variant, of)
            weights[of.protocol, label] = found
            taken.add((of.variant, label))
            yield of
            continue
        gaps.append(f"{label}'s result of {of.variant} was left out: {why}.")
