"""The benchmark section of a report: tables, every contender, and ratios over length."""

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any

from diffattn.records.results import BenchCase, BenchResult, BenchRow
from diffattn.report.benchmarks.tables import contender_rows, model_table, operator_table
from diffattn.report.benchmarks.wording import case_title, mode_text, run_text, targets_in_words
from diffattn.report.page.cells import number_cell, table, word_cell
from diffattn.report.page.charts import embed, layout, names_of
from diffattn.report.page.wording import MISSING, esc
from diffattn.report.paper import THROUGHPUT_SOURCE

# Okabe and Ito's palette without grey, which is the baseline's.
_COLORS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9")
_WORDS = (
    "<p>T is PyTorch's softmax attention on the matched Transformer. TC is the same softmax "
    "attention computed by our own technique: it tells how much of a ratio to T belongs to the "
    "technique and not to differential attention. Each contender was first compared with the "
    "float64 reference on the timed tensors; one that failed has no numbers. Contenders ran "
    "interleaved. Ratios are medians of the rounds' own ratios, with quartiles.</p>\n"
)


def benchmark_section(results: Sequence[BenchResult]) -> str:
    """HTML of every record; empty text if there is none."""
    if not results:
        return ""
    parts = [_one_record(result, f"bench-{index}") for index, result in enumerate(results)]
    return f'<section id="benchmarks">\n<h2>Benchmarks</h2>\n{_WORDS}{"".join(parts)}</section>\n'


def _one_record(result: BenchResult, prefix: str) -> str:
    runs = "".join(f"<li>{esc(run_text(result, name))}</li>" for name in result.runs)
    parts = [f"<ul>{runs}</ul>\n"]
    operators = [case for case in result.cases if case.suite != "models"]
    models = [case for case in result.cases if case.suite == "models"]
    if operators:
        parts.append(_table("Attention: the fastest differential contender.",
                            *operator_table(operators)))  # fmt: skip
        parts.append(_charts(operators, prefix))
    if models:
        caption = f"Models: tokens per second. Published: {THROUGHPUT_SOURCE}, on H100 GPUs."
        parts.append(_table(caption, *model_table(models)))
    summary = esc(targets_in_words(result.cases)).replace("\n", "<br>")
    parts.append(f"<p>{summary}</p>\n")
    parts.append("<details><summary>Every contender</summary>\n")
    parts += [_details(case) for case in result.cases]
    return "".join([*parts, "</details>\n"])


def _table(caption: str, headers: Iterable[str], rows: Iterable[Sequence[str]]) -> str:
    return table(
        caption,
        [esc(header) for header in headers],
        [[f'<th scope="row">{esc(row[0])}</th>', *map(_cell, row[1:])] for row in rows],
    )


def _cell(text: str) -> str:
    if len(text) > 40:
        return f'<td class="long">{esc(text)}</td>'
    numeric = text[:1].isdigit() or text == MISSING
    return (number_cell if numeric else word_cell)(esc(text))


def _details(case: BenchCase) -> str:
    rows = contender_rows(case)
    headers = list(rows[0]) if rows else []
    return _table(case_title(case), headers, [list(row.values()) for row in rows])


def _charts(cases: Sequence[BenchCase], prefix: str) -> str:
    """One chart per head shape, dtype and pass that was measured at several lengths."""
    groups: dict[tuple[Any, ...], list[BenchCase]] = {}
    for case in cases:
        others = tuple((k, v) for k, v in case.shape.items() if k != _axis(case))
        groups.setdefault((case.suite, others, case.dtype, case.mode), []).append(case)
    found = [group for group in groups.values() if len(group) > 1]
    charts = [_chart(group, f"{prefix}-chart-{index}") for index, group in enumerate(found)]
    return f'<div class="pair">{"".join(charts)}</div>\n' if charts else ""


def _axis(case: BenchCase) -> str:
    return "S" if "S" in case.shape else "N"


def _chart(cases: Sequence[BenchCase], element_id: str) -> str:
    first, axis = cases[0], _axis(cases[0])
    ordered = sorted(cases, key=lambda case: case.shape[axis])
    measured = Counter(
        (row.role, row.contender) for case in ordered for row in case.rows if row.ratio_t
    )
    # One length makes no line; what was measured there stands in the tables.
    names = [name for name, lengths in measured.items() if lengths > 1]
    traces, colors = [], iter(_COLORS * 3)
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
    caption = f"{esc(title)}: time over that of T. Bars: quartiles of the rounds. "
    ticks = {"type": "log", "tickvals": [case.shape[axis] for case in ordered]}
    return embed(
        traces,
        layout(unit, "time / time of T", xaxis=ticks, yaxis={"rangemode": "tozero"}),
        element_id,
        caption + names_of(dict.fromkeys(case.run for case in ordered)),
        height=360,
        label=f"{title}: time over that of softmax attention, by length",
    )


def _trace(
    points: Sequence[tuple[int, BenchRow]], name: str, color: str, *, dashed: bool
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
        "name": esc(name),
        "line": {"color": color, "dash": "dash" if dashed else "solid"},
        "hovertemplate": f"{esc(name)}<br>%{{x}} tokens: %{{y:.3f}}<extra></extra>",
    }
