"""Several evaluation folders as one: models by label, shares put together, the rest named."""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from diffattn.errors import CheckpointError, ConfigError
from diffattn.lab.evaluation.compare import compare_answers
from diffattn.lab.evaluation.pairing import Answers
from diffattn.lab.evaluation.read_data import recorded_data
from diffattn.lab.evaluation.shards import shard_folders
from diffattn.lab.records.evaluations import LATER_FACTS, Comparison, EvalResult, evaluation_marker

_SAME = ("weights", "vocabulary", "dtype", "bos", "max_length")
"""Facts by which models of one label in two folders are one model."""


@dataclass(kw_only=True, slots=True)
class Gathered:
    """What evaluation folders hold."""

    labels: list[str] = field(default_factory=list)
    """Models, the baseline first."""
    variants: list[str] = field(default_factory=list)
    answers: dict[str, dict[str, Answers]] = field(default_factory=dict)
    """By variant and label."""
    rows: dict[tuple[str, str], list[dict[str, Any]]] = field(default_factory=dict)
    """All rows of a label and variant, failed ones too."""
    gaps: list[str] = field(default_factory=list)
    """One sentence for everything that was left out."""

    def results(self) -> list[EvalResult]:
        """Model by model; those that share no table with the first of their protocol left out."""
        kept = []
        for label in self.labels:
            for variant in self.variants:
                of = self.answers.get(variant, {})
                first = next((of[name] for name in self.labels if name in of), None)
                if label in of and first and not of[label].result.unlike(first.result):
                    result = of[label].result
                    kept.append(replace(result, model=result.model | {"label": label}))
        return kept

    def compared(self) -> Comparison:
        """Every model with its baseline; see :func:`diffattn.lab.evaluation.compare.compare`."""
        return compare_answers(self.answers, self.labels, self.variants, {})


def gather(folders: Sequence[Path], baseline: str | None = None) -> Gathered:
    """Read evaluation folders; each may hold several models and protocols.

    A label that two folders give to different models gets the folder's name behind it. Shares of
    an evaluation (``--shard``) are put together if all are there, from any of the folders.

    Args:
        folders: Written by ``diffattn evaluate``.
        baseline: Label of the model that the others are compared with. Default: the first.

    Raises:
        CheckpointError: A folder is none, or none has a result that can be read.
        ConfigError: No model is called ``baseline``.
    """
    found = Gathered()
    facts: dict[str, dict[str, Any]] = {}
    shares: dict[tuple[str, str], list[tuple[Path, EvalResult]]] = {}
    for folder in map(Path, dict.fromkeys(folders)):
        marker = evaluation_marker(folder)
        found.variants += [name for name in marker["variants"] if name not in found.variants]
        for label in marker["models"]:
            for variant in marker["variants"]:
                paths = _finished(folder / label / variant)
                if not paths:
                    found.gaps.append(f"{label} has no result of {variant}.")
                for path in paths:
                    try:
                        result = EvalResult.read(path)
                        rows = result.read_items(path)
                    except CheckpointError as error:
                        found.gaps.append(f"{label} is left out of {variant}: {error}")
                        continue
                    name = _label(label, result, folder, facts)
                    if "shard" in result.selection:
                        shares.setdefault((name, variant), []).append((path, result))
                    else:
                        _add(found, name, variant, result, rows, folder)
    for (name, variant), parts in shares.items():
        if name not in found.answers.get(variant, {}):
            _put_together(found, name, variant, parts)
    found.labels = list(facts)
    if not any(found.answers.values()):
        reason = f" {found.gaps[0]}" if found.gaps else ""
        raise CheckpointError(f"compare: one result or more is needed, got none.{reason}")
    if baseline is not None:
        if baseline not in found.labels:
            raise ConfigError(
                f"--baseline: must be one of {', '.join(found.labels)}, got {baseline!r}."
            )
        found.labels.sort(key=lambda name: name != baseline)
    for variant, of in found.answers.items():
        first = next(of[name] for name in found.labels if name in of)
        for name in found.labels:
            if name in of and (why := of[name].result.unlike(first.result)):
                found.gaps.append(f"{name} is left out of {variant}: {why}.")
    return found


def _finished(part: Path) -> list[Path]:
    """The folder of a part if it is finished, else those of its finished shares."""
    candidates = [part] if (part / "result.json").exists() else shard_folders(part)
    return [path for path in candidates if (path / "result.json").exists()]


def _label(label: str, result: EvalResult, folder: Path, facts: dict[str, dict[str, Any]]) -> str:
    """The label, or another one if it is a different model's already."""
    own = {key: result.model.get(key) for key in _SAME}
    own |= {key: result.model[key] for key in LATER_FACTS if key in result.model}
    name, count = label, 1
    while _is_another(facts.get(name, {}), own):
        end = "" if count == 1 else f"-{count}"
        name, count = f"{label}@{folder.resolve().name}{end}", count + 1
    facts[name] = own | facts.get(name, {})  # what an older record lacks, another may say
    return name


def _is_another(known: dict[str, Any], own: dict[str, Any]) -> bool:
    """Whether facts that both records hold differ."""
    return any(known[key] != own[key] for key in known.keys() & own.keys())


def _add(
    found: Gathered,
    name: str,
    variant: str,
    result: EvalResult,
    rows: list[dict[str, Any]],
    folder: Path,
) -> None:
    if name in found.answers.setdefault(variant, {}):
        found.gaps.append(f"{name} has {variant} twice: that in {folder} is left out.")
        return
    found.answers[variant][name] = Answers.of(name, result, rows)
    found.rows[name, variant] = rows


def _put_together(
    found: Gathered, name: str, variant: str, parts: Sequence[tuple[Path, EvalResult]]
) -> None:
    """One result of all shares, if there are all and they have the same settings."""
    first = parts[0][1]
    count = first.selection["shard"][1]
    by_share: dict[int, tuple[Path, EvalResult]] = {}
    for path, result in parts:
        number, of = result.selection["shard"]
        plain = replace(result, selection=result.selection | {"shard": first.selection["shard"]})
        if of != count or plain.unlike(first):
            found.gaps.append(f"{path.name} of {name} has other settings and is left out.")
            continue
        if len({recorded_data(path), recorded_data(parts[0][0])} - {None}) > 1:
            found.gaps.append(f"{path.name} of {name} has read other data and is left out.")
            continue
        by_share.setdefault(number, (path, result))
    missing = [str(i) for i in range(1, count + 1) if i not in by_share]
    if missing:
        found.gaps.append(
            f"{name} is left out of {variant}: of {count} shares there is no {', '.join(missing)}."
        )
        return
    rows = [row for path, result in by_share.values() for row in result.read_items(path)]
    scored = [row for row in rows if "error" not in row]
    if not scored:
        found.gaps.append(f"{name} is left out of {variant}: no item was scored.")
        return
    from diffattn.lab.evaluation.registry import protocol_class  # PyTorch loads with it

    kind = protocol_class(first.protocol)
    known = {key: _tuples(x) for key, x in first.parameters.items() if hasattr(kind, key)}
    summary = kind(**known).summarise(scored)
    limit = {key: value for key, value in first.selection.items() if key != "shard"}
    result = replace(
        first, metrics=summary.metrics, tables=summary.tables, num_items=len(rows),
        num_failed=len(rows) - len(scored), selection=limit,
    )  # fmt: skip
    _add(found, name, variant, result, rows, parts[0][0])


def _tuples(value: Any) -> Any:
    """Lists as tuples: the parameters of a protocol are tuples, and JSON has lists alone."""
    return tuple(map(_tuples, value)) if isinstance(value, list) else value
