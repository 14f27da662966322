"""Paired differences between models over the items that both have answered."""

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from diffattn.records.evaluations import Comparison, EvalResult, PairedDifference, evaluation_marker
from diffattn.records.lock import sole_writer
from diffattn.stats.contrasts import paired_contrast

_PER_TOKEN = re.compile(r"nll(?!_per_word)|per_token|text loss")
"""Scores whose unit is the tokenizer's: the same text has another number of tokens in another."""

_RAN_WITH = ("dtype", "bos", "max_length")
"""Facts of a model that can move its scores without being the model."""


def compare_folder(folder: Path) -> Comparison | None:
    """Compare the models of an evaluation folder by all its parts; ``None`` if it has one model.

    Raises:
        CheckpointError: ``folder`` is no evaluation folder, or a record is damaged.
    """
    with sole_writer(folder, wait=True):  # of several processes the last one sees all results
        marker = evaluation_marker(folder)
        if len(marker["models"]) < 2:
            return None
        return compare(folder, marker["models"], marker["variants"])


def compare(folder: Path, labels: Sequence[str], variants: Sequence[str]) -> Comparison:
    """Compare every model with the first, score by score, and write ``comparison.json``.

    Args:
        folder: Evaluation folder with ``<label>/<variant>/``.
        labels: Models; the first is the baseline.
        variants: Protocols, by folder name.
    """
    baseline, *others = labels
    differences: list[PairedDifference] = []
    skipped: list[str] = []
    notes: list[str] = []
    for variant in variants:
        for label in others:
            first, second = (folder / model / variant for model in (baseline, label))
            missing = [p.parent.name for p in (first, second) if not (p / "result.json").exists()]
            if missing:
                skipped.append(
                    f"{variant}: {label} was not compared: {missing[0]} has no result of {variant}."
                )
                continue
            results = EvalResult.read(first), EvalResult.read(second)
            fault = _mismatch(*results)
            if fault:
                skipped.append(f"{variant}: {label} was not compared: {fault}.")
                continue
            base, rows = _scored(results[0], first), _scored(results[1], second)
            differing = _differences(variant, label, baseline, rows, base)
            a, b = (result.model.get("vocabulary") for result in results)
            unlike = [
                difference.score
                for difference in differing
                if a != b and _PER_TOKEN.search(difference.score)
            ]
            if unlike:
                skipped.append(
                    f"{variant}: {', '.join(unlike)} of {label} was not compared: its tokenizer "
                    "has another vocabulary, and these count per token."
                )
            differences += [
                difference for difference in differing if difference.score not in unlike
            ]
            unequal = [key for key in _RAN_WITH if results[0].model[key] != results[1].model[key]]
            if unequal:
                ran = ", ".join(
                    f"{key} {results[1].model[key]} where {baseline} has {results[0].model[key]}"
                    for key in unequal
                )
                notes.append(f"{variant}: {label} ran with {ran}.")
    comparison = Comparison(
        baseline=baseline, differences=differences, skipped=skipped, notes=notes
    )
    comparison.write(folder)
    return comparison


def _mismatch(a: EvalResult, b: EvalResult) -> str | None:
    if (a.protocol, a.version) != (b.protocol, b.version):
        return "they are of different protocol versions"
    return None if a.parameters == b.parameters else "the parameters differ"


def _scored(result: EvalResult, folder: Path) -> dict[str, Mapping[str, Any]]:
    return {row["id"]: row for row in result.read_items(folder) if "error" not in row}


def _differences(
    variant: str,
    model: str,
    baseline: str,
    rows: Mapping[str, Mapping[str, Any]],
    base: Mapping[str, Mapping[str, Any]],
) -> list[PairedDifference]:
    names = sorted({name for row in rows.values() for name in row["scores"]})
    differences = []
    for name in names:
        scored, other = ({i for i in side if name in side[i]["scores"]} for side in (rows, base))
        both = [
            i
            for i in base
            if i in scored & other and _weight(rows[i], name) == _weight(base[i], name)
        ]
        if not both:
            continue
        x, b = (np.array([side[i]["scores"][name] for i in both], float) for side in (rows, base))
        weights = np.array([_weight(base[i], name) for i in both])
        clusters = [str(base[i].get("cluster", i)) for i in both]
        contrast = paired_contrast(x, b, weights, clusters)
        interval = contrast.interval
        differences.append(
            PairedDifference(
                variant=variant, score=name, model=model, baseline=baseline,
                difference=interval.mean, low=interval.low, high=interval.high,
                level=interval.level, method=interval.method,
                p_value=contrast.p_value, test=contrast.test,
                n=interval.n, num_items=len(both),
                num_unpaired=len(scored | other) - len(both),
            )
        )  # fmt: skip
    return differences


def _weight(row: Mapping[str, Any], name: str) -> float:
    """What an item counts in a score's mean; items of different weight are not the same item."""
    return float(row.get("weights", {}).get(name, 1.0))
