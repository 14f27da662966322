"""Compare models on the items that they answered, and read several evaluation folders as one."""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from diffattn.errors import CheckpointError, ConfigError
from diffattn.lab.evaluation.metrics import (
    Guess,
    Row,
    guessing,
    is_share,
    part_score,
    primary_score,
    row_clusters,
    row_weight,
    wrapped_protocol,
)
from diffattn.lab.evaluation.verdicts import over_seeds, partners, with_verdicts
from diffattn.lab.records.evaluations import (
    Comparison,
    EvalResult,
    Floor,
    PairedDifference,
    evaluation_marker,
)
from diffattn.lab.records.lock import sole_writer
from diffattn.lab.stats.paired import paired_contrast

_PER_TOKEN = re.compile(r"nll(?!_per_word)|per_token|text loss")
"""Names of scores per token. They cannot be compared between tokenizers."""
_KINDS = (("task",), ("needles", "asked"))
"""Groups of fields of a row that tell tasks apart. Each task has its own score of guessing."""
_PARTS = (("length",), *_KINDS, ("depth",), ("shots",), ("kind",), ("pairs",))
"""Groups of fields of a row. The primary score is compared for each value of each group."""


@dataclass(frozen=True)
class Answers:
    """The answers of one model in one protocol."""

    label: str
    result: EvalResult
    every: Sequence[Row]  # rows of all items, failed items included

    @classmethod
    def read(cls, label: str, part: Path) -> "Answers":
        result = EvalResult.read(part)
        return cls(label, result, result.read_items(part))

    @cached_property
    def rows(self) -> dict[str, Row]:
        return {str(row["id"]): row for row in self.every if "error" not in row}

    def guess(self, ids: Sequence[str], score: str) -> Guess | None:
        """The score of guessing on the items with these ids, if it is known."""
        protocol = wrapped_protocol(self.result.protocol, self.result.parameters)
        return guessing(protocol, [self.rows[i] for i in ids], score)


def compare_folder(folder: Path) -> Comparison | None:
    """Compare the models of an evaluation folder in all its parts; ``None`` if it has one model."""
    with sole_writer(folder, wait=True):  # the last of several processes sees all results
        marker = evaluation_marker(folder)
        if len(marker["models"]) < 2:
            return None
        return compare(folder, marker["models"], marker["variants"])


def compare(folder: Path, labels: Sequence[str], variants: Sequence[str]) -> Comparison:
    """Compare models score by score, and write ``comparison.json``; see :func:`compare_answers`."""
    answers: dict[str, dict[str, Answers]] = {}
    missing: dict[tuple[str, str], str] = {}
    for variant in variants:
        for label in labels:
            part = folder / label / variant
            if not (part / "result.json").exists():
                continue
            try:
                answers.setdefault(variant, {})[label] = Answers.read(label, part)
            except CheckpointError as error:  # a damaged record stops no other comparison
                missing[label, variant] = str(error).rstrip(".")
    comparison = compare_answers(answers, labels, variants, missing)
    comparison.write(folder)
    return comparison


def compare_answers(
    answers: Mapping[str, Mapping[str, Answers]],
    labels: Sequence[str],
    variants: Sequence[str],
    missing: Mapping[tuple[str, str], str],
) -> Comparison:
    """Compare answers in memory, variant to label to answers; ``missing`` tells why a (label,
    variant) has none."""
    compared: list[PairedDifference] = []
    skipped: list[str] = []
    notes: list[str] = []
    for variant in variants:
        sides, of_variant = answers.get(variant, {}), list[PairedDifference]()
        for label, baseline in partners(labels):
            absent = next((name for name in (baseline, label) if name not in sides), None)
            if absent is not None:
                none = f"{absent} has no result of {variant}"
                fault = missing.get((absent, variant), none)
            else:
                fault = sides[label].result.unlike(sides[baseline].result)
            if fault:
                skipped.append(f"{variant}: {label} was not compared: {fault}.")
                continue
            of_variant += _compare_pair(variant, sides[label], sides[baseline], skipped, notes)
        compared += [*of_variant, *over_seeds(of_variant)]
    return Comparison(
        baseline=labels[0], differences=with_verdicts(compared), skipped=skipped, notes=notes
    )


class _Pair:
    """Two models, and the ids of the items that both have answered, in the baseline's order."""

    def __init__(self, model: Answers, baseline: Answers) -> None:
        self.model, self.baseline = model, baseline
        self.same: list[str] = []  # their prompts are equal: they are paired
        self.other_text: list[str] = []  # their prompts differ: they are not paired
        for name, row in baseline.rows.items():
            if name in model.rows:
                hashes = {x.get("prompt", {}).get("sha256") for x in (row, model.rows[name])}
                (self.same if len(hashes) == 1 else self.other_text).append(name)

    def differences(self) -> list[PairedDifference]:
        """Differences of every score over all paired items; of the primary score also by part."""
        names = sorted({name for row in self.model.rows.values() for name in row["scores"]})
        result = self.baseline.result
        declared = primary_score(result.protocol, result.parameters, names)
        primary, is_better = declared or (None, None)
        paired: list[PairedDifference] = []
        for name in names:
            whole = self._difference(name, self.same)
            if whole is None:
                continue
            if name != primary:
                paired.append(whole)
                continue
            floors = self._floors(name, names)
            whole = replace(whole, primary=True, higher_is_better=is_better, floors=floors)
            paired.append(self._with_guess(whole, self.same))
            for where, ids in _split(self.baseline.rows, self.same, _PARTS):
                score = part_score(name, where, names)
                part = score and self._difference(score, ids)
                if part:
                    part = replace(part, where=where, higher_is_better=is_better)
                    paired.append(self._with_guess(part, ids))
        return paired

    def _difference(self, name: str, ids: Sequence[str]) -> PairedDifference | None:
        rows, base = self.model.rows, self.baseline.rows
        scored, other = ({i for i in side if name in side[i]["scores"]} for side in (rows, base))
        unlike = (scored & other).intersection(self.other_text)
        # Items with the same id but another weight are not paired.
        both = [
            i
            for i in ids
            if i in scored and i in other and row_weight(rows[i], name) == row_weight(base[i], name)
        ]
        if not both:
            return None
        x, b = (np.array([side[i]["scores"][name] for i in both], float) for side in (rows, base))
        weights = np.array([row_weight(base[i], name) for i in both])
        clusters = row_clusters([base[i] for i in both])
        contrast = paired_contrast(x, b, weights, clusters, shares=is_share(name))
        interval, whole = contrast.interval, len(ids) == len(self.same)
        return PairedDifference(
            variant=self.baseline.result.variant,
            score=name,
            model=self.model.label,
            baseline=self.baseline.label,
            difference=interval.mean,
            **interval.around_mean(),
            p_value=contrast.p_value,
            test=contrast.test,
            num_items=len(both),
            num_unpaired=len(scored | other) - len(both) - len(unlike) if whole else 0,
            num_other_text=len(unlike) if whole else 0,
            value=float(np.average(x, weights=weights)),
            baseline_value=float(np.average(b, weights=weights)),
        )

    def _guesses(self, ids: Sequence[str], score: str) -> tuple[Guess, Guess] | None:
        """The guesses for the model and its baseline, if both are known."""
        model, base = self.model.guess(ids, score), self.baseline.guess(ids, score)
        return (model, base) if model and base else None

    def _with_guess(self, item: PairedDifference, ids: Sequence[str]) -> PairedDifference:
        if (guesses := self._guesses(ids, item.score)) is None:
            return item
        model, base = guesses
        ceiling = max(model.ceiling, base.ceiling)
        return replace(item, chance=base.chance, guess_ceiling=ceiling, guess=base.how)

    def _floors(self, name: str, names: Sequence[str]) -> list[Floor]:
        """Scores of guessing over all items and over each task, if both models have them."""
        rows = self.baseline.rows
        scored = [i for i in self.same if name in rows[i]["scores"]]
        floors = []
        for where, ids in [({}, self.same), *_split(rows, scored, _KINDS)]:
            score = part_score(name, where, names) or name if where else name
            if (guesses := self._guesses(ids, score)) is None:
                continue
            means = []
            for guess in guesses:
                weights = [row_weight(row, score) for row in guess.rows]
                values = [row["scores"][score] for row in guess.rows]
                means.append(float(np.average(values, weights=weights)))
            model, base = guesses
            n = len(set(row_clusters(base.rows)))
            scores = {"value": means[0], "baseline_value": means[1]}
            ends = {"guess": model.ceiling, "baseline_guess": base.ceiling}
            floors.append(Floor(where=where, n=n, **scores, **ends))
        return floors


def _split(
    rows: Mapping[str, Row], ids: Sequence[str], every: Sequence[Sequence[str]]
) -> Iterator[tuple[dict[str, Any], tuple[str, ...]]]:
    """Ids by the values of each group of fields, sorted; groups of 2 to 64 values are split."""
    for fields in every:
        groups: dict[tuple[Any, ...], list[str]] = {}
        for i in ids:
            values = tuple(rows[i].get(key) for key in fields)
            if all(isinstance(value, str | int | float) for value in values):
                groups.setdefault(values, []).append(i)
        if 1 < len(groups) <= 64:
            for values in sorted(groups, key=lambda x: [(isinstance(v, str), v) for v in x]):
                yield dict(zip(fields, values, strict=True)), tuple(groups[values])


def _compare_pair(
    variant: str, model: Answers, base: Answers, skipped: list[str], notes: list[str]
) -> list[PairedDifference]:
    """Differences. Sentences on scores left out go to ``skipped``, on unlike runs to ``notes``."""
    pair = _Pair(model, base)
    same, others = len(pair.same), len(pair.other_text)
    ran, other = model.result.model, base.result.model
    other_vocabulary = ran.get("vocabulary") != other.get("vocabulary")
    reason = "though the tokenizers are alike: the files that they read have changed"
    if other_vocabulary:
        reason = "as its tokenizer has another vocabulary and lengths are counted in tokens"
    if others and same:
        notes.append(
            f"{variant}: {others} of {others + same} items of {model.label} hold another text "
            f"than {base.label}'s and are not paired, {reason}."
        )
    if other_vocabulary and same:
        notes.append(
            f"{variant}: {model.label} has another tokenizer than {base.label}: a length in tokens "
            "holds another amount of text; the paired items hold the same text."
        )
    unequal = [key for key in ("dtype", "bos", "max_length") if ran[key] != other[key]]
    if unequal:
        facts = (f"{key} {ran[key]} where {base.label} has {other[key]}" for key in unequal)
        notes.append(f"{variant}: {model.label} ran with {', '.join(facts)}.")
    if others and not same:
        skipped.append(
            f"{variant}: {model.label} was not compared: all {others} items hold another text than "
            f"{base.label}'s, {reason}."
        )
        return []
    paired = pair.differences()
    unlike = dict.fromkeys(item.score for item in paired if _PER_TOKEN.search(item.score))
    if not unlike or not other_vocabulary:
        return paired
    skipped.append(
        f"{variant}: {', '.join(unlike)} of {model.label} was not compared: its tokenizer has "
        "another vocabulary, and these count per token."
    )
    return [item for item in paired if item.score not in unlike]


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
    gaps: list[str] = field(default_factory=list)  # a sentence for each result that was left out

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
        return compare_answers(self.answers, self.labels, self.variants, {})

    def add(self, variant: str, answers: Answers, folder: Path) -> None:
        """Add the first answers of a model in a variant. If another model has the label, the new
        one becomes ``LABEL@FOLDER``."""
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
    """Read evaluation folders of several models and protocols. Default baseline: the first one."""
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
