"""Claims about time, measured by benchmarks."""

from collections.abc import Iterator, Sequence
from statistics import median
from typing import Any

from diffattn.lab.records.results import BenchCase
from diffattn.lab.report.claims import commands
from diffattn.lab.report.claims.claim import SHARED, V1, V2, Claim, Measure, Measured
from diffattn.lab.report.claims.records import BENCHMARKS, ClaimRecords

_Ratio = tuple[float, float, float]
"""Median over the rounds of a case, and their extremes."""


def time_ratio(
    contender: str,
    *,
    mode: str,
    suite: str = "models",
    against: str | None = None,
    on_gpu: bool = True,
    also: tuple[str, str] | None = None,
    **shape: Any,
) -> Measure:
    """Measure time over that of another contender: the median over all cases, and their range.

    The range of a single case is that of its rounds.

    Args:
        contender: ``"diff"``, ``"diff_v2"`` or ``"shared_diff"``; any of role DIFF if empty.
        mode: ``"forward"``, ``"forward_backward"`` or ``"decode"``.
        suite: Of ``diffattn bench``.
        against: Another contender. Default: the Transformer by the same technique.
        on_gpu: Whether the claim is about GPUs, so that times of a CPU say nothing about it.
        also: Another suite and mode whose cases count, too.
        **shape: Required entries of a case's shape.
    """

    def measure(records: ClaimRecords) -> Measured | None:
        cases = [
            case
            for result in records.benchmarks
            for case in result.cases
            if (case.suite, case.mode) in ((suite, mode), also)
            and shape.items() <= case.shape.items()
        ]
        with_gpu = [case for case in cases if case.device != "cpu"] if on_gpu else []
        ratios = list(_ratios(with_gpu or cases, contender, against))
        if not ratios:
            return None
        values = sorted(ratio for _, (ratio, *_) in ratios)
        low, high = values[0], values[-1]
        if len(ratios) == 1:
            _, (_, low, high) = ratios[0]
        kinds = sorted({f"{case.device} {case.dtype}" for case, _ in ratios})
        why = "timed on a CPU; the claim is about GPUs" if on_gpu and not with_gpu else ""
        return Measured(
            effect=median(values),
            low=low,
            high=high,
            n=len(values),
            unit="cases",
            is_range=True,
            uninformative=why,
            note=", ".join(kinds),
        )

    return measure


def _ratios(
    cases: Sequence[BenchCase], contender: str, against: str | None
) -> Iterator[tuple[BenchCase, _Ratio]]:
    """The ratio of the fastest fitting contender of every case that has one."""
    for case in cases:
        timed = [
            row
            for row in case.rows
            if row.status == "ok" and row.role == "DIFF" and contender in ("", row.contender)
        ]
        ratios: list[_Ratio]
        if against is None:
            spreads = [row.ratio_tc for row in timed if row.ratio_tc]
            ratios = [(spread.median, spread.minimum, spread.maximum) for spread in spreads]
        else:
            base = case.row(against)
            # Two ratios to T do not give the extremes of one to the other.
            medians = [
                row.ratio_t.median / base.ratio_t.median
                for row in timed
                if row.ratio_t and base and base.ratio_t
            ]
            ratios = [(ratio, ratio, ratio) for ratio in medians]
        if ratios:
            yield case, min(ratios)


TIME_CLAIMS = (
    Claim(
        id="training-cost",
        source=f"{V1}, Table 7",
        says="Training throughput is 6 to 12 % lower (H100): by the tokens per second printed a "
        "step takes 1.06 to 1.12 times as long.",
        effect="time of DIFF V1's forward and backward pass over the Transformer's, both our "
        "layers, by `auto`",
        bound=7_491 / 6_718,
        commands=commands.bench("models"),
        record=BENCHMARKS,
        measure=time_ratio("diff", mode="forward_backward"),
    ),
    Claim(
        id="forward-cost",
        source=f"{V1}, Table 7",
        says="Prefill throughput is 5 to 10 % lower (H100): by the tokens per second printed it "
        "takes 1.05 to 1.10 times as long.",
        effect="time of DIFF V1's forward pass over the Transformer's, both our layers, by `auto`",
        bound=48_762 / 44_521,
        commands=commands.bench("models"),
        record=BENCHMARKS,
        measure=time_ratio("diff", mode="forward"),
    ),
    Claim(
        id="shared-latency",
        source=f"{SHARED}, left open there",
        says="Fewer parameters make Shared DIFF faster than V1 (asked, not answered).",
        effect="time of Shared DIFF's forward pass over DIFF V1's",
        bound=1.0,
        commands=commands.bench("models"),
        record=BENCHMARKS,
        measure=time_ratio(
            "shared_diff",
            mode="forward",
            against="diff",
            on_gpu=False,
            also=("generation", "prefill"),
        ),
    ),
    Claim(
        id="v2-decode",
        source=V2,
        says="V2 decodes as fast as the Transformer: the same keys and values are read.",
        effect="time of DIFF V2's decoding step over the Transformer's by the same technique",
        bound=1.1,
        commands=commands.bench("decode", "--attention v2"),
        record=BENCHMARKS,
        measure=time_ratio("", mode="decode", suite="decode", attention="v2"),
    ),
)
