"""Paired differences of one protocol between two models, from the rows of both. Pure."""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from diffattn.lab.evaluation.metrics import is_share, row_clusters, row_weight
from diffattn.lab.evaluation.primary import (
    KINDS,
    PARTS,
    Guess,
    Row,
    guessing,
    part_of,
    part_score,
    primary_score,
    wrapped_protocol,
)
from diffattn.lab.records.evaluations import EvalResult, Floor, PairedDifference
from diffattn.lab.stats.contrasts import paired_contrast
from diffattn.lab.stats.paired import paired_difference, paired_t_test

PER_TOKEN = re.compile(r"nll(?!_per_word)|per_token|text loss")
"""Scores whose unit is the tokenizer's: the same text has another number of tokens in another."""
_MOST_PARTS = 64
"""Values of a field beyond which its parts are not told apart."""
_SEED = re.compile(r"(?P<stem>.+)-seed(?P<seed>\d{1,18})")


@dataclass(frozen=True, slots=True)
class Answers:
    """What one model answered in one protocol."""

    label: str
    """The model's, unique among those that are compared."""
    result: EvalResult
    rows: Mapping[str, Row]
    """Those with scores, by id."""

    @classmethod
    def of(cls, label: str, result: EvalResult, rows: Sequence[Row]) -> "Answers":
        """Of all rows of a result; those that failed are left out."""
        return cls(label, result, {str(row["id"]): row for row in rows if "error" not in row})


@dataclass(frozen=True, slots=True)
class Pairing:
    """Items that two models have both answered."""

    same: tuple[str, ...]
    """Ids of those that hold the same text, as far as the records tell."""
    other_text: tuple[str, ...]
    """Ids of those that hold another text: not paired."""
    unhashed: int
    """Of ``same``: how many rows do not say what text they hold."""


def pair_items(model: Answers, baseline: Answers) -> Pairing:
    """Ids in the baseline's order; two texts are the same if their hashes are."""
    same, other, unhashed = [], [], 0
    for name, row in baseline.rows.items():
        if name not in model.rows:
            continue
        digests = text_hash(row), text_hash(model.rows[name])
        if None in digests:
            unhashed += 1
        elif digests[0] != digests[1]:
            other.append(name)
            continue
        same.append(name)
    return Pairing(tuple(same), tuple(other), unhashed)


def text_hash(row: Row) -> str | None:
    """Hash of the text that a row's item held; ``None`` in records that have none."""
    prompt = row.get("prompt")
    digest = prompt.get("sha256") if isinstance(prompt, Mapping) else None
    return digest if isinstance(digest, str) else None


def differences(model: Answers, baseline: Answers, pairing: Pairing) -> list[PairedDifference]:
    """Every score over all paired items; the primary score also part by part.

    Args:
        model: Compared with the baseline.
        baseline: Of the same protocol, version and parameters.
        pairing: From :func:`pair_items`.
    """
    names = sorted({name for row in model.rows.values() for name in row["scores"]})
    of = baseline.result
    primary = primary_score(of.protocol, of.parameters, names)
    found: list[PairedDifference] = []
    for name in names:
        one = _difference(model, baseline, pairing, name, pairing.same)
        if one is None:
            continue
        if primary is None or name != primary[0]:
            found.append(one)
            continue
        one = replace(
            one, primary=True, higher_is_better=primary[1],
            floors=_floors(model, baseline, pairing.same, name, names),
        )  # fmt: skip
        found.append(_with_guess(one, model, baseline, pairing.same))
        for where, ids in _parts(baseline.rows, pairing.same):
            of_part = part_score(name, where, names)
            part = of_part and _difference(model, baseline, pairing, of_part, ids)
            if part:
                part = replace(part, where=where, higher_is_better=primary[1])
                found.append(_with_guess(part, model, baseline, ids))
    return found


def _difference(
    model: Answers, baseline: Answers, pairing: Pairing, name: str, ids: Sequence[str]
) -> PairedDifference | None:
    rows, base = model.rows, baseline.rows
    scored, other = ({i for i in side if name in side[i]["scores"]} for side in (rows, base))
    unlike = (scored & other).intersection(pairing.other_text)
    # Items of different weight are not the same item.
    both = [
        i for i in ids
        if i in scored and i in other and row_weight(rows[i], name) == row_weight(base[i], name)
    ]  # fmt: skip
    if not both:
        return None
    x, b = (np.array([side[i]["scores"][name] for i in both], float) for side in (rows, base))
    weights = np.array([row_weight(base[i], name) for i in both])
    clusters = row_clusters([base[i] for i in both])
    contrast = paired_contrast(x, b, weights, clusters, shares=is_share(name))
    interval, whole = contrast.interval, len(ids) == len(pairing.same)
    return PairedDifference(
        variant=baseline.result.variant, score=name, model=model.label, baseline=baseline.label,
        difference=interval.mean, low=interval.low, high=interval.high, level=interval.level,
        method=interval.method, p_value=contrast.p_value, test=contrast.test, n=interval.n,
        num_items=len(both),
        num_unpaired=len(scored | other) - len(both) - len(unlike) if whole else 0,
        num_other_text=len(unlike) if whole else 0,
        value=float(np.average(x, weights=weights)),
        baseline_value=float(np.average(b, weights=weights)),
    )  # fmt: skip


def _guess(of: Answers, ids: Sequence[str], score: str) -> Guess:
    result = of.result
    protocol = wrapped_protocol(result.protocol, result.parameters)
    return guessing(protocol, [of.rows[i] for i in ids], score)


def _with_guess(
    one: PairedDifference, model: Answers, baseline: Answers, ids: Sequence[str]
) -> PairedDifference:
    own, guess = (_guess(side, ids, one.score) for side in (model, baseline))
    if own.ceiling is None or guess.ceiling is None:
        return one
    ceiling = max(own.ceiling, guess.ceiling)
    return replace(one, chance=guess.chance, guess_ceiling=ceiling, guess=guess.how)


def _floors(
    model: Answers, baseline: Answers, ids: Sequence[str], name: str, names: Sequence[str]
) -> list[Floor]:
    """Of all items, and kind by kind of task, where both models have one."""
    found = []
    scored = [i for i in ids if name in baseline.rows[i]["scores"]]
    kinds = (part for fields in KINDS for part in _by_value(baseline.rows, scored, fields))
    for where, of_kind in [({}, ids), *kinds]:
        score = part_score(name, where, names) or name if where else name
        own, base = (_guess(side, of_kind, score) for side in (model, baseline))
        if own.ceiling is None or base.ceiling is None:
            continue
        found.append(
            Floor(
                where=where, n=len(set(row_clusters(base.rows))),
                value=_mean(own.rows, score), guess=own.ceiling,
                baseline_value=_mean(base.rows, score), baseline_guess=base.ceiling,
            )
        )  # fmt: skip
    return found


def _mean(rows: Sequence[Row], score: str) -> float:
    weights = [row_weight(row, score) for row in rows]
    return float(np.average([row["scores"][score] for row in rows], weights=weights))


def _parts(
    rows: Mapping[str, Row], ids: Sequence[str]
) -> Iterator[tuple[dict[str, Any], tuple[str, ...]]]:
    """Items by each field that tells them apart, its values in order."""
    for fields in PARTS:
        yield from _by_value(rows, ids, fields)


def _by_value(
    rows: Mapping[str, Row], ids: Sequence[str], fields: Sequence[str]
) -> Iterator[tuple[dict[str, Any], tuple[str, ...]]]:
    """Items by the values of some fields, in order; nothing if these do not tell them apart."""
    by_value: dict[tuple[tuple[str, Any], ...], list[str]] = {}
    for i in ids:
        part = part_of(rows[i], fields)
        if part is not None:
            by_value.setdefault(part, []).append(i)
    if 1 < len(by_value) <= _MOST_PARTS:
        for part in sorted(by_value, key=lambda p: [(isinstance(v, str), v) for _, v in p]):
            yield dict(part), tuple(by_value[part])


def seed_of(label: str) -> tuple[str, int] | None:
    """``("diff", 3)`` of ``diff-seed3``; ``None`` for another name."""
    match = _SEED.fullmatch(label)
    return None if match is None else (match["stem"], int(match["seed"]))


def partners(labels: Sequence[str]) -> list[tuple[str, str]]:
    """Every model with its baseline: the first model, or the one of its kind and the same seed.

    Models called ``NAME-seedK`` are compared seed by seed, if the first one is called so and its
    NAME has that seed; others with the first.
    """
    if not labels:
        return []
    first = seed_of(labels[0])
    pairs = []
    for label in labels[1:]:
        seed = seed_of(label)
        if first is None or seed is None:
            pairs.append((label, labels[0]))
        elif seed[0] != first[0]:
            same = f"{first[0]}-seed{seed[1]}"
            pairs.append((label, same if same in labels else labels[0]))
    return pairs


def over_seeds(items: Sequence[PairedDifference]) -> list[PairedDifference]:
    """Primary differences of models that differ in the seed alone, as a sample of seeds.

    Student's t over the seeds' differences: the only interval here that says anything of the kind
    of model rather than of these weights.
    """
    groups: dict[tuple[str, str, str, str], list[PairedDifference]] = {}
    for one in items:
        a, b = seed_of(one.model), seed_of(one.baseline)
        if one.primary and a is not None and b is not None and a[1] == b[1]:
            groups.setdefault((one.variant, one.score, a[0], b[0]), []).append(one)
    found = []
    for (_, _, model, baseline), of in groups.items():
        values = [one.difference for one in of]
        interval = paired_difference(values, [0.0] * len(values))
        if interval.low == interval.high:  # seeds that are all alike do not tell their spread
            none = "none: no seed differs from another"
            interval = replace(interval, low=None, high=None, method=none)
        levels = [one.value for one in of if one.value is not None]
        bases = [one.baseline_value for one in of if one.baseline_value is not None]
        found.append(
            replace(
                of[0], model=model, baseline=baseline, over="seeds", difference=interval.mean,
                low=interval.low, high=interval.high, level=interval.level, n=interval.n,
                method=interval.method, p_value=paired_t_test(values), test="Student t over seeds",
                num_items=sum(one.num_items for one in of),
                num_unpaired=sum(one.num_unpaired for one in of),
                num_other_text=sum(one.num_other_text for one in of),
                value=float(np.mean(levels)), baseline_value=float(np.mean(bases)), floors=[],
            )
        )  # fmt: skip
    return found
