"""Several evaluation folders read as one."""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from diffattn.errors import CheckpointError, ConfigError
from diffattn.lab.evaluation.compare import Answers, compare_answers
from diffattn.lab.evaluation.read_data import recorded_data
from diffattn.lab.evaluation.shards import shard_folders
from diffattn.lab.records.evaluations import Comparison, EvalResult, evaluation_marker

_SAME = (
    *("weights", "vocabulary", "dtype", "bos", "max_length"),
    *("end_tokens", "config", "tokenizer_hash", "chat_template"),
)
"""Facts that are equal where two folders mean one model by one label."""


@dataclass(kw_only=True, slots=True)
class Gathered:
    """Contents of evaluation folders."""

    facts: dict[str, dict[str, Any]] = field(default_factory=dict)
    """Facts of the models, by label."""
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
        """Model by model, without those that share no table with the first of their protocol."""
        kept = []
        for label in self.labels:
            for variant in self.variants:
                sides = self.answers.get(variant, {})
                first = next((sides[name] for name in self.labels if name in sides), None)
                if label in sides and first and not sides[label].result.unlike(first.result):
                    result = sides[label].result
                    kept.append(replace(result, model=result.model | {"label": label}))
        return kept

    def compared(self) -> Comparison:
        """Every model with its baseline; see :func:`diffattn.lab.evaluation.compare.compare`."""
        return compare_answers(self.answers, self.labels, self.variants, {})

    def label(self, label: str, result: EvalResult, folder: Path) -> str:
        """The label, with the folder's name behind it if another model has it already."""
        facts = {key: result.model.get(key) for key in _SAME}
        name, count = label, 1
        while self.facts.setdefault(name, facts) != facts:
            end = "" if count == 1 else f"-{count}"
            name, count = f"{label}@{folder.resolve().name}{end}", count + 1
        return name

    def add(
        self, name: str, variant: str, result: EvalResult, rows: list[dict[str, Any]], folder: Path
    ) -> None:
        """Add a result, unless there is one already."""
        if name in self.answers.setdefault(variant, {}):
            self.gaps.append(f"{name} has {variant} twice: that in {folder} is left out.")
            return
        self.answers[variant][name] = Answers.from_result(name, result, rows)
        self.rows[name, variant] = rows

    def add_shares(self, name: str, variant: str, parts: Sequence[tuple[Path, EvalResult]]) -> None:
        """Add one result of all shares, if all are there with the same settings and data."""
        first_path, first = parts[0]
        count = first.selection["shard"][1]
        by_share: dict[int, tuple[Path, EvalResult]] = {}
        for path, result in parts:
            number, out_of = result.selection["shard"]
            same = replace(result, selection=result.selection | {"shard": first.selection["shard"]})
            if out_of != count or same.unlike(first):
                self.gaps.append(f"{path.name} of {name} has other settings and is left out.")
            elif len({recorded_data(path), recorded_data(first_path)} - {None}) > 1:
                self.gaps.append(f"{path.name} of {name} has read other data and is left out.")
            else:
                by_share.setdefault(number, (path, result))
        missing = [str(i) for i in range(1, count + 1) if i not in by_share]
        left_out = f"{name} is left out of {variant}"
        if missing:
            self.gaps.append(f"{left_out}: of {count} shares there is no {', '.join(missing)}.")
            return
        rows = [row for path, result in by_share.values() for row in result.read_items(path)]
        if all("error" in row for row in rows):
            self.gaps.append(f"{left_out}: no item was scored.")
            return
        self.add(name, variant, _whole(first, rows), rows, first_path)


def gather(folders: Sequence[Path], baseline: str | None = None) -> Gathered:
    """Read evaluation folders; each may hold several models and protocols.

    A label that two folders give to different models gets the folder's name behind it. Shares of
    an evaluation (``--shard``) are put together if all are there, from any of the folders. The
    other models are compared with ``baseline``; default: the first.

    Raises:
        CheckpointError: A folder is none, or none has a result that can be read.
        ConfigError: No model is called ``baseline``.
    """
    gathered = Gathered()
    shares: dict[tuple[str, str], list[tuple[Path, EvalResult]]] = {}
    for folder in map(Path, dict.fromkeys(folders)):
        marker = evaluation_marker(folder)
        gathered.variants = list(dict.fromkeys([*gathered.variants, *marker["variants"]]))
        for label in marker["models"]:
            for variant in marker["variants"]:
                paths = _finished(folder / label / variant)
                if not paths:
                    gathered.gaps.append(f"{label} has no result of {variant}.")
                for path in paths:
                    try:
                        result = EvalResult.read(path)
                        rows = result.read_items(path)
                    except CheckpointError as error:
                        gathered.gaps.append(f"{label} is left out of {variant}: {error}")
                        continue
                    name = gathered.label(label, result, folder)
                    if "shard" in result.selection:
                        shares.setdefault((name, variant), []).append((path, result))
                    else:
                        gathered.add(name, variant, result, rows, folder)
    for (name, variant), parts in shares.items():
        if name not in gathered.answers.get(variant, {}):
            gathered.add_shares(name, variant, parts)
    if not any(gathered.answers.values()):
        reason = f" {gathered.gaps[0]}" if gathered.gaps else ""
        raise CheckpointError(f"compare: one result or more is needed, got none.{reason}")
    labels = gathered.labels = list(gathered.facts)
    if baseline is not None and baseline not in labels:
        raise ConfigError(f"--baseline: must be one of {', '.join(labels)}, got {baseline!r}.")
    labels.sort(key=lambda name: baseline is not None and name != baseline)
    return gathered


def _finished(part: Path) -> list[Path]:
    """The folder of a part if it is finished, else those of its finished shares."""
    paths = [part] if (part / "result.json").exists() else shard_folders(part)
    return [path for path in paths if (path / "result.json").exists()]


def _whole(first: EvalResult, rows: Sequence[dict[str, Any]]) -> EvalResult:
    """The result of all rows, by the settings of the first share."""
    from diffattn.lab.evaluation.registry import protocol_class  # PyTorch loads with it

    scored = [row for row in rows if "error" not in row]
    kind = protocol_class(first.protocol)
    settings = {key: _tuples(x) for key, x in first.parameters.items() if hasattr(kind, key)}
    summary = kind(**settings).summarise(scored)
    return replace(
        first,
        metrics=summary.metrics,
        tables=summary.tables,
        num_items=len(rows),
        num_failed=len(rows) - len(scored),
        selection={key: value for key, value in first.selection.items() if key != "shard"},
    )


def _tuples(value: Any) -> Any:
    """Lists as tuples: the parameters of a protocol are tuples, and JSON has lists alone."""
    return tuple(map(_tuples, value)) if isinstance(value, list) else value
