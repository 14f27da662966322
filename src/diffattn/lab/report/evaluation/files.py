"""Read an evaluation folder: the results of all models, and sentences on missing ones."""

from dataclasses import dataclass
from pathlib import Path

from diffattn.errors import CheckpointError, short
from diffattn.lab.records.evaluations import (
    EVALUATION_MARKER,
    Comparison,
    EvalResult,
    evaluation_marker,
)
from diffattn.lab.records.run import RunRecord
from diffattn.lab.records.stored_runs import results_folder


@dataclass(frozen=True, kw_only=True, slots=True)
class EvaluationFolder:
    """An evaluation folder in memory."""

    results: dict[str, list[EvalResult]]
    """Variant -> results, one per model that has finished it."""
    records: list[RunRecord]
    comparison: Comparison | None
    gaps: tuple[str, ...]


def is_evaluation_folder(folder: Path) -> bool:
    """Whether ``diffattn evaluate`` wrote this folder."""
    return (Path(folder) / EVALUATION_MARKER).exists()


def read_evaluation(folder: Path) -> EvaluationFolder:
    """Read an evaluation folder. ``gaps`` names what is missing, damaged or of another version.

    Raises:
        CheckpointError: ``evaluation.json`` is missing or damaged, or no result can be read.
    """
    folder = Path(folder)
    marker, stored = evaluation_marker(folder), results_folder(folder)
    results: dict[str, list[EvalResult]] = {}
    records, gaps = [], []
    damaged: list[CheckpointError] = []
    for variant in marker["variants"]:
        for label in marker["models"]:
            part = stored / label / variant
            if not (part / "result.json").exists():
                gaps.append(f"{label} has no result of {variant}.")
                continue
            try:
                result, record = _read_part(part, label, variant), RunRecord.read(part)
            except CheckpointError as error:  # the other records can still be shown
                damaged.append(error)
                gaps.append(f"{label} is left out of {variant}: {error}")
                continue
            first = results.setdefault(variant, [result])[0]
            if first is not result:
                if unlike := result.unlike(first):
                    gaps.append(f"{label} is left out of {variant}: {unlike}.")
                    continue
                results[variant].append(result)
            records.append(record)
    if damaged and not records:
        raise damaged[0]
    comparison = None
    if (folder / "comparison.json").exists():
        try:
            comparison = Comparison.read(folder)
        except CheckpointError as error:
            gaps.append(f"The comparison is left out: {error}")
    absent = tuple(gaps)
    if comparison:  # missing results are named above
        gaps += [sentence for sentence in comparison.skipped if not sentence.endswith(absent)]
        gaps += comparison.notes
    elif len(marker["models"]) > 1 and not (folder / "comparison.json").exists():
        gaps.append("The models were not compared: comparison.json is missing.")
    return EvaluationFolder(
        results=results, records=records, comparison=comparison, gaps=tuple(gaps)
    )


def _read_part(part: Path, label: str, variant: str) -> EvalResult:
    result = EvalResult.read(part)
    if (result.model.get("label"), result.variant) != (label, variant):
        raise CheckpointError(
            f"{part / 'result.json'}: must be of {label} and {variant}, got "
            f"{short(result.model.get('label'))} and {short(result.variant)}."
        )
    return result
