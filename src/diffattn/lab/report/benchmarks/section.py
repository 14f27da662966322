"""The benchmark section of a report: tables, every contender, and ratios over length."""

from collections import Counter
from collections.abc import Iterable, Sequence
from itertools import cycle
from typing import Any

from diffattn.lab.records.results import BenchCase, BenchResult, BenchRow
from diffattn.lab.report.benchmarks.tables import (
    contender_rows,
    generation_table,
    model_table,
    operator_table,
)
from diffattn.lab.report.benchmarks.wording import case_title, mode_text, run_text, targets_in_words
from diffattn.lab.report.page.charts import PALETTE, Chart, layout, names_of
from diffattn.lab.report.page.elements import Bullets, Element, Fold, Pair, Section, Text
from diffattn.lab.report.page.runs import is_number
from diffattn.lab.report.page.tables import Cell, Table, head_cell, number_cell, table, word_cell
from diffattn.lab.report.page.wording import MISSING
from diffattn.lab.report.paper import THROUGHPUT_SOURCE

_LONG_TEXT = 40
_READING = (
    "T is PyTorch's softmax attention on the matched Transformer. TC is the same softmax attention "
    "computed by our own technique: it tells how much of a ratio to T belongs to the technique and "
    "not to differential attention. Each contender was first compared with the float64 reference "
    "on the timed tensors; one that failed has no numbers. Contenders ran interleaved. Ratios are "
    "medians of the rounds' own ratios, with quartiles."
)
_GENERATION = (
    "Generation: time to read a context, and of every further token per row, with its tokens per "
    "second. Folded: the low-rank updates of Shared DIFF added to its weights."
)


def bench_section(results: Sequence[BenchResult]) -> list[Section]:
    """The section of all records; none without records."""
    if not results:
        return []
    content = [
        element
        for index, result in enumerate(results)
        for element in _record(result, f"bench-{index}")
    ]
    return [Section("benchmarks", "Benchmarks", [Text(_READING), *content])]


def _record(result: BenchResult, prefix: str) -> list[Element]:
    operators = [case for case in result.cases if case.suite in ("ops", "decode", "paged")]
    models = [case for case in result.cases if case.suite == "models"]
    generation = [case for case in result.cases if case.suite == "generation"]
    operators_caption = "Attention: the fastest differential contender."
    models_caption = f"Models: tokens per second. Published: {THROUGHPUT_SOURCE}, on H100 GPUs."
    elements: list[Element] = [Bullets([run_text(result, name) for name in result.runs])]
    if operators:
        elements.append(_table(operators_caption, *operator_table(operators)))
        elements.append(Pair(_charts(operators, prefix)))
    if models:
        elements.append(_table(models_caption, *model_table(models)))
    if generation:
        elements.append(_table(_GENERATION, *generation_table(generation)))
    return [
        *elements,
        Bullets(targets_in_words(result.cases).split("\n")),
        Fold("Every contender", [_contenders(case) for case in result.cases]),
    ]


def _table(caption: str, headers: Iterable[str], rows: Iterable[Sequence[str]]) -> Table:
    cells = [[head_cell(row[0]), *map(_cell, row[1:])] for row in rows]
    return table(caption, headers, cells)


def _cell(text: str) -> Cell:
    if len(text) > _LONG_TEXT:
        return Cell(text=text, kind="long")
    numeric = text[:1].isdigit() or text == MISSING
    return number_cell(text) if numeric else word_cell(text)


def _contenders(case: BenchCase) -> Table:
    rows = contender_rows(case)
    headers = list(rows[0]) if rows else []
    return _table(case_title(case), headers, [list(row.values()) for row in rows])


def _charts(cases: Sequence[BenchCase], prefix: str) -> tuple[Chart, ...]:
    """One chart per head shape, dtype and pass that was measured at several lengths."""
    groups: dict[tuple[Any, ...], list[BenchCase]] = {}
    for case in cases:
        if not is_number(case.shape.get(_axis(case))):
            continue
        others = tuple((k, v) for k, v in case.shape.items() if k != _axis(case))
        groups.setdefault((case.suite, others, case.dtype, case.mode), []).append(case)
    several = [group for group in groups.values() if len(group) > 1]
    return tuple(_chart(group, f"{prefix}-chart-{index}") for index, group in enumerate(several))


def _axis(case: BenchCase) -> str:
    return "S" if "S" in case.shape else "N"


def _chart(cases: Sequence[BenchCase], element_id: str) -> Chart:
    first, axis = cases[0], _axis(cases[0])
    ordered = sorted(cases, key=lambda case: case.shape[axis])
    measured = Counter(
        (row.role, row.contender) for case in ordered for row in case.rows if row.ratio_t
    )
    # One length makes no line; what was measured there stands in the tables.
    names = [name for name, lengths in measured.items() if lengths > 1]
    traces, colors = [], cycle(PALETTE)
    by_technique: dict[str, str] = {}
    for role, name in names:
        technique = name.removeprefix("softmax_")
        color = "#4d4d4d" if role == "T" else by_technique.setdefault(technique, next(colors))
        points = [
            (case.shape[axis], row)
            for case in ordered
            for row in case.rows
            if (row.role, row.contender) == (role, name) and row.ratio_t
        ]
        traces.append(_trace(points, f"{role}: {name}", color, dashed=role != "DIFF"))
    shape = " ".join(f"{k}{v}" for k, v in first.shape.items() if k != axis)
    title = f"{shape}, {first.dtype}, {mode_text(first)}"
    unit = "cached tokens" if axis == "S" else "tokens"
    ticks = {"type": "log", "tickvals": [case.shape[axis] for case in ordered]}
    return Chart(
        element_id=element_id,
        traces=traces,
        look=layout(unit, "time / time of T", xaxis=ticks, yaxis={"rangemode": "tozero"}),
        caption=f"{title}: time over that of T. Bars: quartiles of the rounds.",
        runs=names_of(dict.fromkeys(case.run for case in ordered)),
        height=360,
        label=f"{title}: time over that of softmax attention, by length",
    )


def _trace(
    points: Sequence[tuple[Any, BenchRow]], name: str, color: str, *, dashed: bool
) -> dict[str, Any]:
    ratios = [row.ratio_t for _, row in points if row.ratio_t]
    return {
        "type": "scatter",
        "mode": "lines+markers",
        "x": [length for length, _ in points],
        "y": [round(ratio.median, 4) for ratio in ratios],
        "error_y": {
            "type": "data",
            "symmetric": False,
            "array": [round(ratio.high - ratio.median, 4) for ratio in ratios],
            "arrayminus": [round(ratio.median - ratio.low, 4) for ratio in ratios],
        },
        "name": name,
        "line": {"color": color, "dash": "dash" if dashed else "solid"},
        "hovertemplate": [name, "%{x} tokens: %{y:.3f}"],
    }
