"""Claims about time, measured by benchmarks."""

from collections.abc import Iterator, Sequence
from functools import partial
from statistics import median
from typing import Any

from diffattn.lab.records.results import BenchCase
from diffattn.lab.report.claims import commands
from diffattn.lab.report.claims.claim import Claim, Measured
from diffattn.lab.report.claims.records import BENCHMARKS, ClaimRecords


def time_ratio(
    records: ClaimRecords,
    contender: str,
    *,
    modes: Sequence[tuple[str, str]],
    against: str = "TC",
    on_gpu: bool = True,
    **shape: Any,
) -> Measured | None:
    """Measure time divided by another contender's: the median over all cases, and their range.

    Args:
        contender: ``"diff"``, ``"diff_v2"`` or ``"shared_diff"``; if empty, any of role DIFF.
        modes: Pairs of a suite of ``diffattn bench`` and a mode, such as ``("models", "forward")``.
        against: A role of the Transformer, ``"T"`` or ``"TC"``, or a contender.
        on_gpu: Whether the claim is about GPUs. Then times of a CPU are uninformative.
        **shape: Required entries of a case's shape.
    """
    cases = [
        case
        for result in records.benchmarks.values()
        for case in result.cases
        if (case.suite, case.mode) in modes and shape.items() <= case.shape.items()
    ]
    with_gpu = [case for case in cases if case.device != "cpu"] if on_gpu else []
    ratios = list(_ratios(with_gpu or cases, contender, against))
    if not ratios:
        return None
    values = sorted(ratio for _, (ratio, *_) in ratios)
    low, high = values[0], values[-1]
    if len(ratios) == 1:
        _, (_, low, high) = ratios[0]
    return Measured(
        effect=median(values),
        low=low,
        high=high,
        n=len(values),
        unit="cases",
        uninformative="timed on a CPU; the claim is about GPUs" if on_gpu and not with_gpu else "",
        note=", ".join(sorted({f"{case.device} {case.dtype}" for case, _ in ratios})),
    )


def _ratios(
    cases: Sequence[BenchCase], contender: str, against: str
) -> Iterator[tuple[BenchCase, tuple[float, float, float]]]:
    """Per case, the ratio of the fastest contender that fits: median over rounds, least, most."""
    for case in cases:
        timed = [
            row
            for row in case.rows
            if row.status == "ok" and row.role == "DIFF" and contender in ("", row.contender)
        ]
        if against in ("T", "TC"):
            spreads = [row.ratio_t if against == "T" else row.ratio_tc for row in timed]
            ratios = [(x.median, x.minimum, x.maximum) for x in spreads if x]
        else:
            base = case.row(against)
            over_t = base.ratio_t.median if base and base.ratio_t else None
            medians = [row.ratio_t.median / over_t for row in timed if row.ratio_t and over_t]
            # Two ratios to T do not give the extremes of their quotient: use the medians.
            ratios = [(ratio, ratio, ratio) for ratio in medians]
        if ratios:
            yield case, min(ratios)


def _time_claim(contender: str, *modes: tuple[str, str], **options: Any) -> Claim:
    by = commands.bench(modes[0][0], *(["--attention v2"] if "attention" in options else []))
    measure = partial(time_ratio, contender=contender, modes=modes, **options)
    return Claim(by, BENCHMARKS, measure)


TIME_MEASURES = {
    "training-cost": _time_claim("diff", ("models", "forward_backward"), against="T"),
    "forward-cost": _time_claim("diff", ("models", "forward"), against="T"),
    "shared-latency": _time_claim(
        "shared_diff",
        ("models", "forward"),
        ("generation", "prefill"),
        against="diff",
        on_gpu=False,
    ),
    "v2-decode": _time_claim("", ("decode", "decode"), attention="v2"),
}
