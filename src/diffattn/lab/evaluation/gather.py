"""Read several evaluation folders as one."""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from diffattn.errors import CheckpointError, ConfigError
from diffattn.lab.evaluation.compare import Answers, compare_answers
from diffattn.lab.records.evaluations import Comparison, EvalResult, evaluation_marker

_IDENTITY = (
    "weights", "vocabulary", "dtype", "bos", "max_length",
    "end_tokens", "config", "tokenizer_hash", "chat_template",
)  # fmt: skip
"""Facts of a model. A label means the same model in two folders if these facts are equal."""


@dataclass(kw_only=True, slots=True)
class Gathered:
    """The models and answers of several evaluation folders."""

    facts: dict[str, dict[str, Any]] = field(default_factory=dict)  # of a label's model
    labels: list[str] = field(default_factory=list)  # the baseline first
    variants: list[str] = field(default_factory=list)
    answers: dict[str, dict[str, Answers]] = field(default_factory=dict)
    """Variant to label to answers."""
    gaps: list[str] = field(default_factory=list)
    """One sentence for each result that was left out."""

    def results(self) -> list[EvalResult]:
        """Results, model by model, that can stand in a table with the first model's result."""
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
        """Compare every model with its baseline, as :mod:`diffattn.lab.evaluation.compare` does."""
        return compare_answers(self.answers, self.labels, self.variants, {})

    def add(self, variant: str, answers: Answers, folder: Path) -> None:
        """Add the answers of a model, unless it already has answers in this variant.

        If another model has the label, the new one becomes ``LABEL@FOLDER``.
        """
        facts = {key: answers.result.model.get(key) for key in _IDENTITY}
        name, count = answers.label, 1
        while self.facts.setdefault(name, facts) != facts:
            end = "" if count == 1 else f"-{count}"
            name, count = f"{answers.label}@{folder.resolve().name}{end}", count + 1
        if name in self.answers.setdefault(variant, {}):
            self.gaps.append(f"{name} has {variant} twice: that in {folder} is left out.")
            return
        self.answers[variant][name] = replace(answers, label=name)


def gather(folders: Sequence[Path], baseline: str | None = None) -> Gathered:
    """Read evaluation folders; each may hold several models and protocols.

    ``baseline`` is the label that the other models are compared with. Default: the first one.
    """
    gathered = Gathered()
    for folder in map(Path, dict.fromkeys(folders)):
        marker = evaluation_marker(folder)
        gathered.variants = list(dict.fromkeys([*gathered.variants, *marker["variants"]]))
        for label in marker["models"]:
            for variant in marker["variants"]:
                path = folder / label / variant
                if not (path / "result.json").exists():
                    gathered.gaps.append(f"{label} has no result of {variant}.")
                    continue
                try:
                    gathered.add(variant, Answers.read(label, path), folder)
                except CheckpointError as error:
                    gathered.gaps.append(f"{label} is left out of {variant}: {error}")
    if not any(gathered.answers.values()):
        reason = f" {gathered.gaps[0]}" if gathered.gaps else ""
        raise CheckpointError(f"compare: one result or more is needed, got none.{reason}")
    labels = gathered.labels = list(gathered.facts)
    if baseline is not None and baseline not in labels:
        raise ConfigError(f"--baseline: must be one of {', '.join(labels)}, got {baseline!r}.")
    labels.sort(key=lambda name: baseline is not None and name != baseline)
    return gathered
