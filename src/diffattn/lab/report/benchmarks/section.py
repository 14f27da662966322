"""The benchmark section of a report: tables, and ratios over length."""

from collections import Counter
from collections.abc import Sequence
from itertools import cycle
from typing import Any

from diffattn.lab.records.results import BenchCase, BenchResult
from diffattn.lab.report.benchmarks.tables import case_tables, mode_text, run_text, targets_in_words
from diffattn.lab.report.page.charts import (
    PALETTE,
    Chart,
    interval_bars,
    layout,
    names_of,
    point_line,
)
from diffattn.lab.report.page.elements import Bullets, Element, Fold, Pair, Section, Text
from diffattn.lab.report.page.wording import is_number


def bench_section(results: Sequence[BenchResult]) -> list[Section]:
    """Show all records in one section; empty without records."""
    if not results:
        return []
    reading = Text(
        "T is PyTorch's softmax attention on the matched Transformer. TC is the same softmax "
        "attention computed by our own technique. It tells how much of a ratio to T belongs to the "
        "technique and not to differential attention. Each contender was first compared with the "
        "float64 reference on the timed tensors; one that failed has no numbers. Contenders ran "
        "interleaved. Ratios are medians of the rounds' own ratios, with quartiles."
    )
    content: list[Element] = [reading]
    for index, result in enumerate(results):
        operators = [case for case in result.cases if case.suite in ("ops", "decode", "paged")]
        shown: list[Element] = [
            Bullets([run_text(result, name) for name in result.runs]),
            *case_tables(result.cases),
            Pair(_charts(operators, f"bench-{index}")),
            Bullets(targets_in_words(result.cases)),
        ]
        suites = ", ".join(dict.fromkeys(case.suite for case in result.cases))
        content.append(Fold(f"{suites} ({' · '.join(result.runs)})", shown))
    return [Section("benchmarks", "Benchmarks", content)]


def _charts(cases: Sequence[BenchCase], prefix: str) -> list[Chart]:
    groups: dict[tuple[Any, ...], list[BenchCase]] = {}
    for case in cases:
        axis = _axis(case)
        if is_number(case.shape.get(axis)):
            others = tuple((name, size) for name, size in case.shape.items() if name != axis)
            groups.setdefault((case.suite, others, case.dtype, case.mode), []).append(case)
    several = [group for group in groups.values() if len(group) > 1]
    return [_chart(group, f"{prefix}-chart-{index}") for index, group in enumerate(several)]


def _axis(case: BenchCase) -> str:
    return "S" if "S" in case.shape else "N"


def _chart(cases: Sequence[BenchCase], element_id: str) -> Chart:
    first, axis = cases[0], _axis(cases[0])
    ordered = sorted(cases, key=lambda case: case.shape[axis])
    shape = " ".join(f"{name}{size}" for name, size in first.shape.items() if name != axis)
    title = f"{shape}, {first.dtype}, {mode_text(first)}"
    ticks = {"type": "log", "tickvals": [case.shape[axis] for case in ordered]}
    unit = "cached tokens" if axis == "S" else "tokens"
    return Chart(
        element_id=element_id,
        traces=_traces(ordered, axis),
        look=layout(unit, "time / time of T", xaxis=ticks, yaxis={"rangemode": "tozero"}),
        caption=f"{title}: time over that of T. Bars: quartiles of the rounds.",
        runs=names_of(dict.fromkeys(case.run for case in ordered)),
        height=360,
        label=f"{title}: time over that of softmax attention, by length",
    )


def _traces(cases: Sequence[BenchCase], axis: str) -> list[dict[str, Any]]:
    lengths = Counter((row.role, row.contender) for c in cases for row in c.rows if row.ratio_t)
    colors, by_technique = cycle(PALETTE), {"": "#4d4d4d"}
    traces = []
    for role, name in (contender for contender, times in lengths.items() if times > 1):
        technique = "" if role == "T" else name.removeprefix("softmax_")
        color = by_technique.get(technique) or by_technique.setdefault(technique, next(colors))
        spreads = [
            (case.shape[axis], row.ratio_t)
            for case in cases
            for row in case.rows
            if (row.role, row.contender) == (role, name) and row.ratio_t
        ]
        trace = point_line(
            [(length, spread.median) for length, spread in spreads],
            f"{role}: {name}",
            color=color,
            where="%{x} tokens",
            dash="solid" if role == "DIFF" else "dash",
        )
        bars = interval_bars((spread.median, spread.low, spread.high) for _, spread in spreads)
        traces.append(trace | {"error_y": bars})
    return traces
