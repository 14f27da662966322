"""Read an evaluation folder: the results of every model, and what is missing."""

from dataclasses import dataclass
from pathlib import Path

from diffattn.errors import CheckpointError
from diffattn.records.evaluations import (
    EVALUATION_MARKER,
    Comparison,
    EvalResult,
    evaluation_marker,
)
from diffattn.records.fields import short
from diffattn.records.run import RunRecord
from diffattn.report.page.runs import read_run_record


@dataclass(frozen=True, kw_only=True, slots=True)
class EvaluationFolder:
    """An evaluation folder in memory."""

    results: dict[str, list[EvalResult]]
    """By variant; one result per model that has finished it."""
    records: list[RunRecord]
    comparison: Comparison | None
    gaps: tuple[str, ...]


def is_evaluation_folder(folder: Path) -> bool:
    """Whether ``diffattn evaluate`` wrote this folder."""
    return (Path(folder) / EVALUATION_MARKER).exists()


def read_evaluation(folder: Path) -> EvaluationFolder:
    """Read an evaluation folder; what is missing stands in ``gaps``.

    Raises:
        CheckpointError: ``evaluation.json`` is missing, or a file is damaged or of another kind.
    """
    folder = Path(folder)
    marker = evaluation_marker(folder)
    results: dict[str, list[EvalResult]] = {}
    records, gaps = [], []
    for variant in marker["variants"]:
        for label in marker["models"]:
            part = folder / label / variant
            if (part / "result.json").exists():
                result = EvalResult.read(part)
                if (result.model.get("label"), result.variant) != (label, variant):
                    raise CheckpointError(
                        f"{part / 'result.json'}: must be of {label} and {variant}, got "
                        f"{short(result.model.get('label'))} and {short(result.variant)}."
                    )
                results.setdefault(variant, []).append(result)
                records.append(read_run_record(part))
            else:
                gaps.append(f"{label} has no result of {variant}.")
    for variant, of_models in results.items():
        versions = {result.version for result in of_models}
        if len(versions) > 1:
            raise CheckpointError(
                f"{folder}: every result.json of {variant} must have one protocol version to share "
                f"a table, got {sorted(versions)}."
            )
    comparison = Comparison.read(folder) if (folder / "comparison.json").exists() else None
    absent = tuple(gaps)
    if comparison:  # what has no result is not named a second time
        gaps += [sentence for sentence in comparison.skipped if not sentence.endswith(absent)]
        gaps += comparison.notes
    elif len(marker["models"]) > 1:
        gaps.append("The models were not compared: comparison.json is missing.")
    return EvaluationFolder(
        results=results, records=records, comparison=comparison, gaps=tuple(gaps)
    )
