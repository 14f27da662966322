"""Names of scores, metrics with intervals, and the score of guessing without the question."""

import math
import re
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Any

from diffattn.lab.evaluation.catalog import PRIMARY
from diffattn.lab.records.evaluations import Metric
from diffattn.lab.stats.intervals import Interval, cluster_mean, share_interval

Row = Mapping[str, Any]
_LOSS = re.compile(r"nll|loss|bits_per_byte")
_NO_SHARE = re.compile(r"logprob|largest|signed|lookback_")
"""Scores that may leave [0, 1]: log-probabilities, maxima, signed attention, lookback scores."""


def is_loss(score: str) -> bool:
    """Whether a score of this name is a loss, so that lower is better."""
    return _LOSS.search(score) is not None


def is_share(score: str) -> bool:
    """Whether a score of this name lies between 0 and 1 by definition."""
    return not is_loss(score) and _NO_SHARE.search(score) is None


def task_metric(task: str) -> str:
    """The metric that the paper's table has: ``acc_norm`` for HellaSwag, else ``acc``."""
    return "acc_norm" if task == "hellaswag" else "acc"


def primary_score(
    protocol: str, parameters: Mapping[str, Any], names: Sequence[str]
) -> tuple[str, bool] | None:
    """The declared primary score if it is among ``names``, and whether higher is better. That of
    ``quantized_logits`` is of the wrapped protocol at the smallest number of bits."""
    if protocol == "quantized_logits":
        bits = [b for b in parameters.get("bits", ()) if isinstance(b, int)]
        end = f", {min(bits)} bits" if bits else ""
        inner = [name.removesuffix(end) for name in names if name.endswith(end)]
        wrapped = wrapped_protocol(protocol, parameters)
        primary = primary_score(wrapped, parameters.get("settings") or {}, inner)
        return None if primary is None else (primary[0] + end, primary[1])
    for pattern in PRIMARY.get(protocol, ()):
        for name in _filled(pattern, parameters):
            if name in names:
                return name, not is_loss(name) and not name.startswith("largest")
    return None


def wrapped_protocol(protocol: str, parameters: Mapping[str, Any]) -> str:
    """The protocol that ``quantized_logits`` wraps; for other protocols ``protocol`` itself."""
    return str(parameters.get("protocol")) if protocol == "quantized_logits" else protocol


def _filled(pattern: str, parameters: Mapping[str, Any]) -> list[str]:
    """Names that a pattern stands for: the first task; all windows, the largest first."""
    if "{task}" in pattern:
        return [f"{task} {task_metric(task)}" for task in (parameters.get("tasks") or [])[:1]]
    if "{windows}" in pattern:
        windows = sorted(parameters.get("windows") or [], reverse=True)
        return [pattern.format(windows=window) for window in windows]
    return [pattern.replace("{decoding}", str(parameters.get("decoding")))]


def part_score(name: str, where: Mapping[str, Any], names: Sequence[str]) -> str | None:
    """The name of the primary score ``name`` for one part of the items, if it has one. For an
    average over tasks, it is the score of the task."""
    first, separator, bits = name.partition(", ")
    if first != "average":
        return name
    task = str(where.get("task"))
    score = f"{task} {task_metric(task)}{separator}{bits}"
    return score if score in names else None


def metric(name: str, interval: Interval, **facts: Any) -> Metric:
    """A metric made of a mean with its interval; ``facts`` are other fields of :class:`Metric`."""
    return Metric(name=name, value=interval.mean, **interval.around_mean(), **facts)


def score_metric(
    name: str, rows: Sequence[Row], where: dict[str, Any], **facts: Any
) -> list[Metric]:
    """The mean of a score over rows as a metric with an interval over clusters; [] without rows."""
    if not rows:
        return []
    values, share = [row["scores"][name] for row in rows], is_share(name)
    interval = (share_interval if share else cluster_mean)(values, row_clusters(rows))
    unit = "share" if share else "nats per token"
    return [metric(name, interval, unit=unit, where=where, **facts)]


GUESSES = ("guess", "guess_of_all_that_fit")
"""Fields of a row with the scores of two guesses that ignore the question, as its protocol defines
them. The larger score is the floor: a model must be above it."""
NAMED = "guess_of_all_named"  # in place of the second: as many strings as this model's output names


def guess_shares(references: int, candidates: int, named: int) -> dict[str, float]:
    """Expected scores of naming random strings of N ``candidates``, where the question asks for R:
    ``guess`` is R / N and :data:`NAMED`, for the K that the output names, K / N; none if R >= N."""
    if candidates <= references:
        return {}
    return {GUESSES[0]: references / candidates, NAMED: named / candidates}


def guess_metrics(rows: Sequence[Row], where: dict[str, Any]) -> list[Metric]:
    """Means of the guesses over the rows that state them, without intervals."""
    facts: dict[str, Any] = {"where": where, "headline": True, "higher_is_better": None}
    shares = {kind: [row[kind] for row in rows if kind in row] for kind in (*GUESSES, NAMED)}
    return [
        Metric(name=kind, value=fmean(values), n=len(values), **facts)
        for kind, values in shares.items()
        if values
    ]


def rows_with(rows: Sequence[Mapping[str, Any]], **values: Any) -> list[Mapping[str, Any]]:
    """The rows that have these values."""
    return [row for row in rows if all(row[key] == value for key, value in values.items())]


def row_clusters(rows: Sequence[Row]) -> list[str]:
    """The cluster of each row; a row without a cluster forms its own, named by its id."""
    return [str(row["cluster"] if "cluster" in row else row["id"]) for row in rows]


def row_weight(row: Mapping[str, Any], score: str) -> float:
    """The weight of a row in the mean of one of its scores. Default: 1."""
    return float(row.get("weights", {}).get(score, 1.0))


def loss_metric(
    name: str, interval: Interval, where: Mapping[str, Any] = {}, **facts: Any
) -> Metric:
    """A metric made of a mean loss in nats per token by default: lower is better."""
    facts = {"unit": "nats per token", "higher_is_better": False, "where": dict(where)} | facts
    return metric(name, interval, **facts)


def perplexity_metric(
    name: str, interval: Interval, where: Mapping[str, Any] = {}, *, headline: bool = True
) -> Metric:
    """exp of a mean loss in nats and of its interval's ends; losses above 700 count as 700."""
    ends = (interval.mean, interval.low, interval.high)
    mean, low, high = (None if end is None else math.exp(min(end, 700.0)) for end in ends)
    assert mean is not None
    method = interval.method if low is None else f"exp of the loss's: {interval.method}"
    exponential = Interval(mean, low, high, interval.level, interval.n, method)
    return loss_metric(name, exponential, where, headline=headline, unit="perplexity")


@dataclass(frozen=True, slots=True)
class Guess:
    """The score of guessing."""

    chance: float | None  # expected score of a random answer, if it is known
    ceiling: float  # score of the best guess that is known
    how: str
    rows: tuple[Row, ...]  # for which the guess is known


def guessing(protocol: str, rows: Sequence[Row], score: str) -> Guess | None:
    """The score of guessing in one protocol, if it is known. Of several guesses the best counts.

    - A row may state it: ``guess``, and with it ``guess_of_all_that_fit`` or
      ``guess_of_all_named``; see :data:`GUESSES` and :data:`NAMED`.
    - Classification: chance is a random label, the ceiling the most frequent answer, task by task.
      Multiple choice: a random choice, and always the same position.
    - ``hallucination``: the score of the document's first sentences as an answer.

    ``rows`` are of one model; rows without ``score`` do not count.
    """
    asked = [row for row in rows if score in row["scores"]]
    if protocol == "hallucination":
        name = score.partition(", ")[0]
        led = tuple(row for row in asked if name in row.get("lead", {}))
        if not led:
            return None
        ceiling = fmean(float(row["lead"][name]) for row in led)
        return Guess(None, ceiling, "the first sentences of the document, copied", led)
    stated = _stated_guess(asked)
    if protocol == "hidden_needle" and stated and len(stated.rows) < 20:  # too few for a mean
        stated = None
    known = [guess for guess in (stated, _majority(protocol, asked)) if guess]
    return max(known, key=lambda guess: (guess.ceiling, len(guess.rows)), default=None)


def _stated_guess(asked: Sequence[Row]) -> Guess | None:
    rows = tuple(row for row in asked if isinstance(row.get("guess"), int | float))
    if not rows:
        return None
    chance = fmean(float(row["guess"]) for row in rows)
    ceiling = fmean(float(row.get(NAMED, row.get(GUESSES[1], row["guess"]))) for row in rows)
    how = "strings of the context named without regard to the question"
    if any(NAMED in row for row in rows):
        return Guess(chance, ceiling, f"{how}, as many as the model names itself", rows)
    return Guess(chance, max(chance, ceiling), how, rows)


def _majority(protocol: str, asked: Sequence[Row]) -> Guess | None:
    """The guess in classification and multiple choice, by how often each answer is right."""
    if protocol == "lm_tasks":
        gold, how = "gold", "the same position always"
        is_known = all(isinstance(row.get("logprobs"), list) and row["logprobs"] for row in asked)
    else:
        gold, how = "expected", "the most frequent answer always"
        is_known = protocol in ("many_shot", "order_robustness", "hidden_needle")
    if not asked or not is_known:
        return None
    by_task: dict[str, list[Row]] = defaultdict(list)
    for row in asked:
        by_task[str(row.get("task"))].append(row)
    chances, ceilings = [], []
    for group in by_task.values():
        answers = Counter(str(row.get(gold)) for row in group)
        sizes = [len(x.get("logprobs", ())) or int(x.get("labels", len(answers))) for x in group]
        chances.append(fmean(1 / size for size in sizes))
        ceilings.append(answers.most_common(1)[0][1] / len(group))
    return Guess(fmean(chances), fmean(ceilings), how, tuple(asked))
