"""Comparisons between models over the items that both have answered."""

from collections.abc import Mapping, Sequence
from pathlib import Path

from diffattn.errors import CheckpointError
from diffattn.lab.evaluation.pairing import (
    PER_TOKEN,
    Answers,
    Pairing,
    differences,
    over_seeds,
    pair_items,
    partners,
)
from diffattn.lab.evaluation.verdicts import with_verdicts
from diffattn.lab.records.evaluations import (
    Comparison,
    EvalResult,
    PairedDifference,
    evaluation_marker,
)
from diffattn.lab.records.lock import sole_writer

_RAN_WITH = ("dtype", "bos", "max_length")
"""Facts of a model that can move its scores without being the model."""


def compare_folder(folder: Path) -> Comparison | None:
    """Compare the models of an evaluation folder by all its parts; ``None`` if it has one model.

    Raises:
        CheckpointError: ``folder`` is no evaluation folder.
    """
    with sole_writer(folder, wait=True):  # of several processes the last one sees all results
        marker = evaluation_marker(folder)
        if len(marker["models"]) < 2:
            return None
        return compare(folder, marker["models"], marker["variants"])


def compare(folder: Path, labels: Sequence[str], variants: Sequence[str]) -> Comparison:
    """Compare every model with its baseline, score by score, and write ``comparison.json``.

    Args:
        folder: Evaluation folder with ``<label>/<variant>/``.
        labels: Models; the first is the baseline, or its kind is; see
            :func:`diffattn.lab.evaluation.pairing.partners`.
        variants: Protocols, by folder name.
    """
    answers: dict[str, dict[str, Answers]] = {}
    missing: dict[tuple[str, str], str] = {}
    for variant in variants:
        for label in labels:
            part = folder / label / variant
            if not (part / "result.json").exists():
                missing[label, variant] = f"{label} has no result of {variant}"
                continue
            try:
                result = EvalResult.read(part)
                of_label = Answers.of(label, result, result.read_items(part))
                answers.setdefault(variant, {})[label] = of_label
            except CheckpointError as error:  # a damaged record takes no other down
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
    """Compare what lies in memory.

    Args:
        answers: By variant and label.
        labels: Models; see :func:`compare`.
        variants: Protocols.
        missing: Why a label has no answers to a variant.
    """
    found: list[PairedDifference] = []
    skipped: list[str] = []
    notes: list[str] = []
    for variant in variants:
        of_variant: list[PairedDifference] = []
        for label, baseline in partners(labels):
            sides = answers.get(variant, {})
            lacking = [
                missing.get((name, variant), f"{name} has no result of {variant}")
                for name in (baseline, label)
                if name not in sides
            ]
            fault = lacking[0] if lacking else _mismatch(sides[baseline], sides[label])
            if fault:
                skipped.append(f"{variant}: {label} was not compared: {fault}.")
                continue
            model, base = sides[label], sides[baseline]
            pairing = pair_items(model, base)
            compared, left_out = _compared(model, base, pairing)
            of_variant += compared
            skipped += [f"{variant}: {sentence}" for sentence in left_out]
            notes += [f"{variant}: {sentence}" for sentence in _notes(model, base, pairing)]
        found += [*of_variant, *over_seeds(of_variant)]
    return Comparison(
        baseline=labels[0], differences=with_verdicts(found), skipped=skipped, notes=notes
    )


def _mismatch(a: Answers, b: Answers) -> str | None:
    first, second = a.result, b.result
    if (first.protocol, first.version) != (second.protocol, second.version):
        return "they are of different protocol versions"
    if first.selection != second.selection:
        return "not the same items were asked (--limit)"
    return None if first.parameters == second.parameters else "the parameters differ"


def _compared(
    model: Answers, base: Answers, pairing: Pairing
) -> tuple[list[PairedDifference], list[str]]:
    """Differences, and a sentence for what has none."""
    if pairing.other_text and not pairing.same:
        return [], [
            f"{model.label} was not compared: all {len(pairing.other_text)} items hold another "
            f"text than {base.label}'s, {_why(model, base)}."
        ]
    differing = differences(model, base, pairing)
    if not _other_vocabulary(model, base):
        return differing, []
    unlike = dict.fromkeys(one.score for one in differing if PER_TOKEN.search(one.score))
    sentences = [
        f"{', '.join(unlike)} of {model.label} was not compared: its tokenizer has another "
        "vocabulary, and these count per token."
    ]
    return [one for one in differing if one.score not in unlike], sentences if unlike else []


def _notes(model: Answers, base: Answers, pairing: Pairing) -> list[str]:
    """What was compared although the models ran differently."""
    notes = []
    if pairing.other_text and pairing.same:
        notes.append(
            f"{len(pairing.other_text)} of {len(pairing.other_text) + len(pairing.same)} items of "
            f"{model.label} hold another text than {base.label}'s and are not paired, "
            f"{_why(model, base)}."
        )
    if _other_vocabulary(model, base) and pairing.same:
        same = (
            "the records do not say whether their texts are the same"
            if pairing.unhashed
            else "the paired items hold the same text"
        )
        notes.append(
            f"{model.label} has another tokenizer than {base.label}: a length in tokens holds "
            f"another amount of text; {same}."
        )
    ran, other = model.result.model, base.result.model
    unequal = [key for key in _RAN_WITH if ran[key] != other[key]]
    if unequal:
        words = ", ".join(
            f"{key} {ran[key]} where {base.label} has {other[key]}" for key in unequal
        )
        notes.append(f"{model.label} ran with {words}.")
    return notes


def _other_vocabulary(model: Answers, base: Answers) -> bool:
    return model.result.model.get("vocabulary") != base.result.model.get("vocabulary")


def _why(model: Answers, base: Answers) -> str:
    if _other_vocabulary(model, base):
        return "as its tokenizer has another vocabulary and lengths are counted in tokens"
    return "though the tokenizers are alike: the files that they read have changed"
