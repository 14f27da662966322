"""Claims about scores of models, measured by evaluations."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from statistics import fmean
from typing import Any, Literal

from diffattn.lab.catalog.models import BASELINE, SIDE_EFFECTS
from diffattn.lab.records.evaluations import EvalResult
from diffattn.lab.report.claims import commands
from diffattn.lab.report.claims.claim import NO_CONTROL, Claim, Measured, measure_row, name_controls
from diffattn.lab.report.claims.records import EVALUATIONS, ClaimRecords
from diffattn.lab.report.page.wording import plural
from diffattn.lab.stats.intervals import mean_interval

_Place = tuple[str, str, frozenset[tuple[str, str]]]
"""Variant, metric and ``where``: the part of a result that one number is about."""
_Scores = Mapping[str, Mapping[_Place, float]]
"""Label of a model -> its numbers."""


def evaluated(
    records: ClaimRecords,
    protocol: str,
    metric: str,
    kind: str,
    *,
    better: Literal["above", "below"] = "above",
    parts: tuple[str, ...] = (),
    where: Mapping[str, Any] | None = None,
    printed: tuple[str, str] | None = None,
) -> Measured | None:
    """Measure a metric of an evaluation minus the baseline's, by seed of the models.

    Args:
        metric: Name of the metric, or the start of the names of several. Several are averaged,
            over those that all compared models have.
        kind: Start of the models' labels, as in ``diff-seed0``; models of one seed are paired.
        better: On which side of 0 the difference is in the paper.
        parts: Starts of the names of the protocol's variants. Default: all variants.
        where: Required entries of the metric's ``where``. Default: only headline metrics.
        printed: Key and value in ``where`` for the number that the paper prints. Other places are
            used only if the models lack it, and the note names them. Default: all places.
    """
    scores = _read_scores(records.evaluations, protocol, metric, parts, where)
    floor = records.floors.get((protocol, kind), "")
    return _compare(scores, kind, 1 if better == "above" else -1, floor, printed)


def evaluated_ratio(
    records: ClaimRecords, protocol: str, metric: str, kind: str
) -> Measured | None:
    """Measure the geometric mean of a metric's ratio to the baseline, by seed, without zeros."""
    logarithms = {
        label: {place: math.log(value) for place, value in values.items() if value > 0}
        for label, values in _read_scores(records.evaluations, protocol, metric).items()
    }
    measured = _compare(logarithms, kind, sign=-1)
    if measured is None:
        return None
    # A bounded exponent, so that the factor is finite.
    exponents = ((key, getattr(measured, key)) for key in ("effect", "low", "high"))
    factors: dict[str, Any] = {
        key: None if x is None else math.exp(min(x, 700.0)) for key, x in exponents
    }
    return replace(measured, **factors)


def _read_scores(
    results: Sequence[EvalResult],
    protocol: str,
    metric: str,
    parts: tuple[str, ...] = (),
    where: Mapping[str, Any] | None = None,
) -> _Scores:
    scores: dict[str, dict[_Place, float]] = {}
    for result in results:
        if result.protocol != protocol or (parts and not result.variant.startswith(parts)):
            continue
        values = scores.setdefault(str(result.model.get("label")), {})
        for entry in result.metrics:
            is_wanted = entry.headline if where is None else where.items() <= entry.where.items()
            if is_wanted and entry.name.startswith(metric):
                words = frozenset((key, str(value)) for key, value in entry.where.items())
                values[result.variant, entry.name, words] = entry.value
    return scores


def _compare(
    scores: _Scores, kind: str, sign: int, floor: str = "", printed: tuple[str, str] | None = None
) -> Measured | None:
    """Subtract the baseline's scores, and check a lead against the controls."""
    sides = [side for pair in _pair_by_seed(scores, kind, BASELINE) for side in pair]
    places = set.intersection(*map(set, sides)) if sides else set()
    wanted, note = places, ""
    if printed is not None:
        as_printed = {place for place in places if printed in place[2]}
        if as_printed:
            wanted = as_printed
        else:
            others = {value for *_, where in places for key, value in where if key == printed[0]}
            note = f"{'; '.join(sorted(others))} in place of {printed[1]}"
    elif (every := set().union(*sides)) != places:
        note = f"{len(places)} of {plural(len(every), 'part')}, which all models have"
    shared = {
        label: {place: value for place, value in values.items() if place in wanted}
        for label, values in scores.items()
    }
    differences = _differences(shared, kind, BASELINE)
    if not differences:
        return None
    why = floor
    if not why and sign * fmean(differences) > 0:
        # A lead says nothing without a control, or with one that it does not reliably exceed.
        lows = {
            control: mean_interval([sign * value for value in lead]).low
            for control in SIDE_EFFECTS
            if (lead := _differences(shared, kind, control))
        }
        equal = (control for control, low in lows.items() if low is None or low <= 0)
        why = name_controls(equal) if lows else NO_CONTROL
    interval = mean_interval(differences).recorded()
    return measure_row({"values": differences} | interval, uninformative=why, note=note)


def _pair_by_seed(
    scores: _Scores, kind: str, baseline: str
) -> list[tuple[Mapping[_Place, float], Mapping[_Place, float]]]:
    return [
        (values, scores[other])
        for label, values in scores.items()
        if label.startswith(f"{kind}-seed")
        and (other := label.replace(kind, baseline, 1)) in scores
        and values
        and scores[other]
    ]


def _differences(scores: _Scores, kind: str, baseline: str) -> list[float]:
    """Mean score minus the baseline's, seed by seed, over the numbers that all models have."""
    pairs = _pair_by_seed(scores, kind, baseline)
    # Only means over the same numbers are comparable.
    places = set.intersection(*(set(side) for pair in pairs for side in pair)) if pairs else set()
    return [fmean(a[place] - b[place] for place in places) for a, b in pairs if places]


def _score_claim(
    protocol: str,
    metric: str,
    gpu_parts: str,
    name: str,
    *,
    small: Sequence[str] = (),
    whole: Sequence[str] = (),
    **options: Any,
) -> Claim:
    by = commands.evaluation(gpu_parts, name, small=small, whole=whole)
    measure = partial(evaluated, protocol=protocol, metric=metric, kind="diff", **options)
    return Claim(by, EVALUATIONS, measure, protocol)


_segment_claim = partial(
    _score_claim,
    "attention_segments",
    gpu_parts="table3",
    name="attention_segments",
    small=("attention_segments.length=256", "attention_segments.num_needles=2"),
    whole=("attention_segments.haystack=BOOKS",),
)


def _hallucination_claim(parts: tuple[str, ...], *small: str) -> Claim:
    data, name = "hallucination.data=ARTICLES", "hallucination"
    by = commands.evaluation(
        "table4", name, small=(data, *small), whole=(data,), then=commands.JUDGE
    )
    measure = partial(
        evaluated, protocol=f"{name}_judge", metric="accuracy", kind="diff", parts=parts
    )
    return Claim(by, EVALUATIONS, measure, name)


def _outlier_claim(metric: str) -> Claim:
    small, whole = ("outliers.window_tokens=256",), ("outliers.texts=BOOKS",)
    by = commands.evaluation("table5", "outliers", small=small, whole=whole)
    measure = partial(evaluated_ratio, protocol="outliers", metric=metric, kind="diff")
    return Claim(by, EVALUATIONS, measure, "outliers")


SCORE_MEASURES = {
    "lm-tasks": _score_claim(
        "lm_tasks",
        "average",
        "table8",
        "lm_tasks",
        small=("lm_tasks.data=LM_EVAL",),
        whole=("lm_tasks.data=LM_EVAL",),
    ),
    "needles": _score_claim(
        "needle",
        "recall",
        "table2",
        "needle",
        small=("needle.lengths=[256]", "needle.tasks=[[1,1],[2,1]]"),
        whole=("needle.haystack=BOOKS",),
        printed=("task", "N=6, R=2"),
    ),
    "answer-attention": _segment_claim("answer"),
    "noise-attention": _segment_claim(
        "noise", better="below", where={"weights": "absolute", "normalised": "global"}
    ),
    "many-shot": _score_claim(
        "many_shot",
        "accuracy",
        "fig6",
        "many_shot",
        small=("many_shot.data=ICL", "many_shot.shots=[6]"),
        whole=("many_shot.data=ICL",),
    ),
    "order": _score_claim(
        "order_robustness",
        "margin_greedy_trie",
        "fig11",
        "order",
        small=("order_robustness.data=ICL", "order_robustness.per_class=1"),
        whole=("order_robustness.data=ICL",),
        better="below",
    ),
    "hallucination-summaries": _hallucination_claim(("xsum", "cnn_dm", "multi_news")),
    "hallucination-answers": _hallucination_claim(
        ("qasper", "hotpotqa", "2wikimqa"), "hallucination.dataset=qasper"
    ),
    "outliers": _outlier_claim("largest attention logit"),
    "outliers-hidden": _outlier_claim("largest hidden state"),
    "quantised-logits": _score_claim(
        "quantized_logits",
        "change of hellaswag acc_norm",
        "fig8",
        "quantized_logits",
        small=("quantized_logits.window_tokens=128",),
        where={"bits": 4},
    ),
}
