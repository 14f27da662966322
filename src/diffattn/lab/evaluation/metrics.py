"""The metrics of a summary: every interval enters a record here, with its level and its method."""

import math
import re
from collections.abc import Mapping, Sequence
from statistics import fmean
from typing import Any

from diffattn.lab.records.evaluations import Metric
from diffattn.lab.stats.clusters import cluster_mean
from diffattn.lab.stats.intervals import Interval
from diffattn.lab.stats.proportions import share_interval

_LOSS = re.compile(r"nll|loss|bits_per_byte")
_NO_SHARE = re.compile(r"logprob|largest|signed|lookback_")
"""Log-probabilities, maxima, and parts of signed attention maps."""


def is_loss(score: str) -> bool:
    """Whether a score of this name is a loss, of which less is better.

    Args:
        score: Name of a score of a row, also of one under rounded logits.
    """
    return _LOSS.search(score) is not None


def is_share(score: str) -> bool:
    """Whether a score of this name lies between 0 and 1 by what it is, whatever its values are.

    Args:
        score: As of :func:`is_loss`.
    """
    return not is_loss(score) and _NO_SHARE.search(score) is None


def metric(
    name: str,
    interval: Interval,
    *,
    unit: str = "share",
    where: dict[str, Any] | None = None,
    headline: bool = False,
    higher_is_better: bool | None = True,
) -> Metric:
    """A mean with the interval it came with.

    Args:
        name: Of the metric.
        interval: Its mean, ends, level, method and number of independent items.
        unit: ``"share"`` (0 to 1), ``"nats per token"``, ...
        where: Which part of the protocol. Default: all of it.
        headline: Whether a table of the paper would print it.
        higher_is_better: ``None`` if neither.
    """
    return Metric(
        name=name,
        value=interval.mean,
        low=interval.low,
        high=interval.high,
        n=interval.n,
        level=interval.level,
        method=interval.method,
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
    """The mean of one score over rows, with its interval over clusters; nothing without rows.

    Shares have :func:`share_interval`; others, in nats per token, :func:`cluster_mean`.
    """
    if not rows:
        return []
    values = [row["scores"][name] for row in rows]
    share = is_share(name)
    interval = (share_interval if share else cluster_mean)(values, row_clusters(rows))
    unit = "share" if share else "nats per token"
    return [
        metric(
            name, interval, unit=unit, where=where, headline=headline,
            higher_is_better=higher_is_better,
        )
    ]  # fmt: skip


GUESSES = ("guess", "guess_of_all_that_fit")
"""Of a row: what its score would be without regard to the question; the most is the floor."""
NAMED = "guess_of_all_named"
"""Of a row, in place of the second: what naming as many strings as its output does would score. A
floor of this one model's; whoever names everything is no better than it."""


def guess_shares(references: int, candidates: int, named: int) -> dict[str, float]:
    r"""Expected scores of guesses that name what stands in the context, whatever was asked.

    .. math:: R / N \quad\text{and}\quad K / N

    Args:
        references: R, strings that are looked for.
        candidates: N, different strings of their kind in the context.
        named: K, how many of the N stand in the output.

    Returns:
        ``guess``, of naming R of the N strings, and :data:`NAMED`, of naming K. Nothing if all
        N are looked for: whoever names one has found it.
    """
    if candidates <= references:
        return {}
    return {GUESSES[0]: references / candidates, NAMED: named / candidates}


def guess_metrics(
    rows: Sequence[Mapping[str, Any]], where: dict[str, Any], *, headline: bool = True
) -> list[Metric]:
    """Means of the guesses over the rows that have them, without intervals; else nothing."""
    kinds = (*GUESSES, NAMED)
    of_kind = [(kind, [row[kind] for row in rows if kind in row]) for kind in kinds]
    return [
        Metric(
            name=kind, value=fmean(shares), n=len(shares), unit="share", where=where,
            headline=headline, higher_is_better=None,
        )
        for kind, shares in of_kind if shares
    ]  # fmt: skip


def row_clusters(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """What each row belongs to; a row without a cluster is its own."""
    return [str(row["cluster"] if "cluster" in row else row["id"]) for row in rows]


def row_weight(row: Mapping[str, Any], score: str) -> float:
    """What a row counts in the mean of one of its scores."""
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
    """exp of a mean loss in nats, as the number to be printed; the ends of its interval likewise.

    A loss above 700 nats, of which the exponential is no number, counts as 700.
    """
    ends = (interval.mean, interval.low, interval.high)
    mean, low, high = (None if end is None else math.exp(min(end, 700.0)) for end in ends)
    assert mean is not None
    method = interval.method if low is None else f"exp of the loss's: {interval.method}"
    exponential = Interval(mean, low, high, interval.level, interval.n, method)
    return loss_metric(name, exponential, where, headline=headline, unit="perplexity")
