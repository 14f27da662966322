"""Compare two models on the items that both answered: paired differences for each score."""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from diffattn.errors import CheckpointError
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
        """Read the answers from the folder of a finished part."""
        result = EvalResult.read(part)
        return cls(label, result, result.read_items(part))

    @cached_property
    def rows(self) -> dict[str, Row]:
        """Id to row of the items that did not fail."""
        return {str(row["id"]): row for row in self.every if "error" not in row}

    def guess(self, ids: Sequence[str], score: str) -> Guess:
        """The score of guessing on the items with these ids."""
        protocol = wrapped_protocol(self.result.protocol, self.result.parameters)
        return guessing(protocol, [self.rows[i] for i in ids], score)


class Pairing(NamedTuple):
    """Ids of the items that two models have both answered."""

    same: list[str]  # their prompts are equal: they are paired
    other_text: list[str]  # their prompts differ: they are not paired


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
    """Compare answers that are in memory. :func:`partners` chooses the baselines.

    ``answers`` maps variant and label to answers; ``missing`` tells why (label, variant) has none.
    """
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
            model, base = sides[label], sides[baseline]
            paired, left_out, remarks = _compare_pair(model, base)
            of_variant += paired
            skipped += [f"{variant}: {sentence}" for sentence in left_out]
            notes += [f"{variant}: {sentence}" for sentence in remarks]
        compared += [*of_variant, *over_seeds(of_variant)]
    return Comparison(
        baseline=labels[0], differences=with_verdicts(compared), skipped=skipped, notes=notes
    )


def pair_items(model: Answers, baseline: Answers) -> Pairing:
    """Pair items by id, in the baseline's order; prompts are equal if their hashes are."""
    pairing = Pairing([], [])
    for name, row in baseline.rows.items():
        if name in model.rows:
            hashes = {x.get("prompt", {}).get("sha256") for x in (row, model.rows[name])}
            pairing[len(hashes) > 1].append(name)
    return pairing


def differences(model: Answers, baseline: Answers, pairing: Pairing) -> list[PairedDifference]:
    """Differences of every score over all paired items; of the primary score also by part."""
    names = sorted({name for row in model.rows.values() for name in row["scores"]})
    result = baseline.result
    primary, is_better = primary_score(result.protocol, result.parameters, names) or (None, None)
    paired: list[PairedDifference] = []
    for name in names:
        whole = _difference(model, baseline, pairing, name, pairing.same)
        if whole is None:
            continue
        if name != primary:
            paired.append(whole)
            continue
        floors = _floors(model, baseline, pairing.same, name, names)
        whole = replace(whole, primary=True, higher_is_better=is_better, floors=floors)
        paired.append(_with_guess(whole, model, baseline, pairing.same))
        for where, ids in _split(baseline.rows, pairing.same, _PARTS):
            score = part_score(name, where, names)
            part = score and _difference(model, baseline, pairing, score, ids)
            if part:
                part = replace(part, where=where, higher_is_better=is_better)
                paired.append(_with_guess(part, model, baseline, ids))
    return paired


def _difference(
    model: Answers, baseline: Answers, pairing: Pairing, name: str, ids: Sequence[str]
) -> PairedDifference | None:
    rows, base = model.rows, baseline.rows
    scored, other = ({i for i in side if name in side[i]["scores"]} for side in (rows, base))
    unlike = (scored & other).intersection(pairing.other_text)
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
    interval, whole = contrast.interval, len(ids) == len(pairing.same)
    return PairedDifference(
        variant=baseline.result.variant,
        score=name,
        model=model.label,
        baseline=baseline.label,
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


def _with_guess(
    item: PairedDifference, model: Answers, baseline: Answers, ids: Sequence[str]
) -> PairedDifference:
    model_guess, base_guess = model.guess(ids, item.score), baseline.guess(ids, item.score)
    if model_guess.ceiling is None or base_guess.ceiling is None:
        return item
    ceiling = max(model_guess.ceiling, base_guess.ceiling)
    return replace(item, chance=base_guess.chance, guess_ceiling=ceiling, guess=base_guess.how)


def _floors(
    model: Answers, baseline: Answers, ids: Sequence[str], name: str, names: Sequence[str]
) -> list[Floor]:
    """Scores of guessing over all items and over each task, if they are known for both models."""
    scored = [i for i in ids if name in baseline.rows[i]["scores"]]
    floors = []
    for where, kind in [({}, ids), *_split(baseline.rows, scored, _KINDS)]:
        score = part_score(name, where, names) or name if where else name
        model_guess, base_guess = model.guess(kind, score), baseline.guess(kind, score)
        if model_guess.ceiling is None or base_guess.ceiling is None:
            continue
        means = []
        for guess in (model_guess, base_guess):
            weights = [row_weight(row, score) for row in guess.rows]
            values = [row["scores"][score] for row in guess.rows]
            means.append(float(np.average(values, weights=weights)))
        floor = {"value": means[0], "guess": model_guess.ceiling, "baseline_value": means[1]}
        n = len(set(row_clusters(base_guess.rows)))
        floors.append(Floor(where=where, n=n, baseline_guess=base_guess.ceiling, **floor))
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
    model: Answers, base: Answers
) -> tuple[list[PairedDifference], list[str], list[str]]:
    """Differences, sentences about scores that cannot be compared, and notes on unlike runs."""
    pairing = pair_items(model, base)
    same, others = len(pairing.same), len(pairing.other_text)
    ran, other = model.result.model, base.result.model
    other_vocabulary = ran.get("vocabulary") != other.get("vocabulary")
    reason = "though the tokenizers are alike: the files that they read have changed"
    if other_vocabulary:
        reason = "as its tokenizer has another vocabulary and lengths are counted in tokens"
    notes = []
    if others and same:
        notes.append(
            f"{others} of {others + same} items of {model.label} hold another text "
            f"than {base.label}'s and are not paired, {reason}."
        )
    if other_vocabulary and same:
        notes.append(
            f"{model.label} has another tokenizer than {base.label}: a length in tokens holds "
            "another amount of text; the paired items hold the same text."
        )
    unequal = [key for key in ("dtype", "bos", "max_length") if ran[key] != other[key]]
    if unequal:
        facts = (f"{key} {ran[key]} where {base.label} has {other[key]}" for key in unequal)
        notes.append(f"{model.label} ran with {', '.join(facts)}.")
    if others and not same:
        none = f"{model.label} was not compared: all {others} items hold another text than"
        return [], [f"{none} {base.label}'s, {reason}."], notes
    paired = differences(model, base, pairing)
    unlike = dict.fromkeys(item.score for item in paired if _PER_TOKEN.search(item.score))
    if not unlike or not other_vocabulary:
        return paired, [], notes
    left_out = (
        f"{', '.join(unlike)} of {model.label} was not compared: its tokenizer has another "
        "vocabulary, and these count per token."
    )
    return [item for item in paired if item.score not in unlike], [left_out], notes
