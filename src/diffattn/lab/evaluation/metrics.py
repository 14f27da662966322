"""Names of scores, and the metrics of a summary with their intervals."""

import math
import re
from collections.abc import Mapping, Sequence
from statistics import fmean
from typing import Any

from diffattn.lab.evaluation.catalog import PRIMARY
from diffattn.lab.records.evaluations import Metric
from diffattn.lab.stats.clusters import cluster_mean
from diffattn.lab.stats.intervals import Interval
from diffattn.lab.stats.proportions import share_interval

_LOSS = re.compile(r"nll|loss|bits_per_byte")
_NO_SHARE = re.compile(r"logprob|largest|signed|lookback_")
"""Log-probabilities, maxima, and parts of signed attention maps."""


def is_loss(score: str) -> bool:
    """Whether a score of this name is a loss, of which less is better."""
    return _LOSS.search(score) is not None


def is_share(score: str) -> bool:
    """Whether a score of this name lies between 0 and 1 by definition, whatever its values are."""
    return not is_loss(score) and _NO_SHARE.search(score) is None


def task_metric(task: str) -> str:
    """The metric of the paper's column: ``acc_norm`` for HellaSwag, ``acc`` for the others."""
    return "acc_norm" if task == "hellaswag" else "acc"


def primary_score(
    protocol: str, parameters: Mapping[str, Any], names: Sequence[str]
) -> tuple[str, bool] | None:
    """The primary score among ``names``, the scores of all rows, and whether more is better.

    ``None`` if none is declared, or the rows do not have it. ``quantized_logits`` takes that of
    the protocol it wraps, at its fewest bits.
    """
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
    """The protocol that asked the items: the one that ``quantized_logits`` wraps, or itself."""
    return str(parameters.get("protocol")) if protocol == "quantized_logits" else protocol


def _filled(pattern: str, parameters: Mapping[str, Any]) -> list[str]:
    """The pattern with parameters in it; of a list of windows the largest comes first."""
    if "{task}" in pattern:
        tasks = parameters.get("tasks") or []
        return [f"{task} {task_metric(task)}" for task in tasks[:1]]
    if "{windows}" in pattern:
        windows = sorted(parameters.get("windows") or [], reverse=True)
        return [pattern.format(windows=window) for window in windows]
    return [pattern.replace("{decoding}", str(parameters.get("decoding")))]


def part_score(name: str, where: Mapping[str, Any], names: Sequence[str]) -> str | None:
    """The score of one part of the primary score ``name``; ``None`` if there is none.

    An average over tasks weighs items, so a task is read from its own score.
    """
    first, separator, bits = name.partition(", ")
    if first != "average":
        return name
    task = str(where.get("task"))
    score = f"{task} {task_metric(task)}{separator}{bits}"
    return score if score in names else None


def metric(
    name: str,
    interval: Interval,
    *,
    unit: str = "share",
    where: dict[str, Any] | None = None,
    headline: bool = False,
    higher_is_better: bool | None = True,
) -> Metric:
    """A mean with its interval. See :class:`Metric` for the arguments."""
    return Metric(
        name=name,
        value=interval.mean,
        **interval.around_mean(),
        unit=unit,
        where=where or {},
        headline=headline,
        higher_is_better=higher_is_better,
    )


def score_metric(
    name: str,
    rows: Sequence[Mapping[str, Any]],
    where: dict[str, Any],
    *,
    headline: bool = False,
    higher_is_better: bool | None = True,
) -> list[Metric]:
    """The mean of one score over rows, with its interval over clusters; nothing without rows."""
    if not rows:
        return []
    values = [row["scores"][name] for row in rows]
    share = is_share(name)
    interval = (share_interval if share else cluster_mean)(values, row_clusters(rows))
    unit = "share" if share else "nats per token"
    facts: dict[str, Any] = {"headline": headline, "higher_is_better": higher_is_better}
    return [metric(name, interval, unit=unit, where=where, **facts)]


GUESSES = ("guess", "guess_of_all_that_fit")
"""Fields of a row: scores of guesses that do not regard the question; the larger is the floor."""
NAMED = "guess_of_all_named"
"""Field of a row, in place of the second: the score of naming as many strings as its output does.
It is a floor of this model alone: one that names everything is no better than it."""


def guess_shares(references: int, candidates: int, named: int) -> dict[str, float]:
    """Expected scores of guesses that name strings of the context, whatever was asked.

    Of N ``candidates``, R ``references`` are looked for and K are ``named`` in the output: R / N
    is ``guess`` and K / N :data:`NAMED`. Nothing if all N are looked for.
    """
    if candidates <= references:
        return {}
    return {GUESSES[0]: references / candidates, NAMED: named / candidates}


def guess_metrics(rows: Sequence[Mapping[str, Any]], where: dict[str, Any]) -> list[Metric]:
    """Means of the guesses over the rows that have them, without intervals; else nothing."""
    facts: dict[str, Any] = {"where": where, "headline": True, "higher_is_better": None}
    shares = {kind: [row[kind] for row in rows if kind in row] for kind in (*GUESSES, NAMED)}
    return [
        Metric(name=kind, value=fmean(values), n=len(values), **facts)
        for kind, values in shares.items()
        if values
    ]


def row_clusters(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """The cluster of each row; a row without one is a cluster of its own."""
    return [str(row["cluster"] if "cluster" in row else row["id"]) for row in rows]


def row_weight(row: Mapping[str, Any], score: str) -> float:
    """The weight of a row in the mean of one of its scores."""
    return float(row.get("weights", {}).get(score, 1.0))


def loss_metric(
    name: str,
    interval: Interval,
    where: dict[str, Any] | None = None,
    *,
    headline: bool = False,
    unit: str = "nats per token",
) -> Metric:
    """A mean loss: lower is better."""
    return metric(name, interval, unit=unit, where=where, headline=headline, higher_is_better=False)


def perplexity_metric(
    name: str, interval: Interval, where: dict[str, Any] | None = None, *, headline: bool = True
) -> Metric:
    """exp of a mean loss in nats and of the ends of its interval; losses above 700 count as 700."""
    ends = (interval.mean, interval.low, interval.high)
    mean, low, high = (None if end is None else math.exp(min(end, 700.0)) for end in ends)
    assert mean is not None
    method = interval.method if low is None else f"exp of the loss's: {interval.method}"
    exponential = Interval(mean, low, high, interval.level, interval.n, method)
    return loss_metric(name, exponential, where, headline=headline, unit="perplexity")
