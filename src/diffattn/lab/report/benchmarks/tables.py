"""Benchmark records as tables and in Markdown. T and TC are always shown together.

``python -m diffattn.lab.report.benchmarks.tables FILE`` regenerates all tables of a Markdown file
between ``<!-- bench: RECORD KEY=VALUE... -->`` and ``<!-- /bench -->``. RECORD is a path from the
working directory. Keys are ``suite``, ``dtype``, ``mode`` and entries of the shape. Several values
are separated by commas.
"""

import re
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from diffattn.errors import ConfigError
from diffattn.files.io import write_text
from diffattn.lab.records.results import BenchCase, BenchResult, BenchRow
from diffattn.lab.report.benchmarks.wording import (
    fastest,
    figure,
    mode_text,
    run_text,
    shape_text,
    times,
    verdict_text,
)
from diffattn.lab.report.page.runs import is_number
from diffattn.lab.report.page.tables import Table, record_table, table_markdown
from diffattn.lab.report.page.wording import MISSING, count, mebibytes, number, ratio
from diffattn.lab.report.paper import THROUGHPUT_SOURCE, throughput

_MARKED = re.compile(r"(<!-- bench: (\S+)((?: \w+=\S+)*) -->\n)(.*?)(<!-- /bench -->)", re.DOTALL)
_MODEL_COLUMNS = {
    "softmax_sdpa": "Transformer (T)",
    "softmax": "Transformer (TC)",
    "diff": "DIFF V1",
    "diff_v2": "DIFF V2",
    "shared_diff": "Shared DIFF",
    "llama": "Llama",
    "diffllama": "DiffLlama",
}
_GENERATION_COLUMNS = _MODEL_COLUMNS | {"shared_diff_folded": "Shared DIFF, folded"}


def contender_rows(case: BenchCase) -> list[dict[str, str]]:
    """One row per timed contender, for a narrow screen. The record holds all numbers."""
    on_gpu = any(row.host_seconds for row in case.rows)
    return [
        {
            "contender": f"{row.role}: {row.contender}"
            + ("" if row.contender.endswith(row.backend or "") else f", {row.backend}"),
            "ms": figure(1e3 * row.seconds.median),
            **({"host ms": _host(row)} if on_gpu else {}),
            "/ T": times(row.ratio_t, spread=False),
            "/ TC": times(row.ratio_tc, spread=False),
            **_amount(row),
            "of peak": f"{number(100 * (row.share_of_peak or 0), 0)} %",
            "error": _error(row),
        }
        for row in case.rows
        if row.seconds is not None
    ]


def _host(row: BenchRow) -> str:
    return figure(1e3 * row.host_seconds) if row.host_seconds else MISSING


def _amount(row: BenchRow) -> dict[str, str]:
    if row.tokens_per_second is not None:
        return {"tokens/s": count(row.tokens_per_second)}
    return {"memory": mebibytes(row.peak_bytes)}


def _error(row: BenchRow) -> str:
    """The error against the reference, as a share of its budget."""
    check = row.check or {}
    if not (is_number(check.get("error")) and check.get("budget")):
        return MISSING
    return f"{number(100 * check['error'] / check['budget'], 0)} %"


def operator_row(case: BenchCase) -> dict[str, str]:
    """One row per operator or decode case: T, TC and the fastest differential contender."""
    base, best = fastest(case, "T"), fastest(case, "DIFF")
    tc = _same_technique(case, best)
    peaks = [row.peak_bytes if row else None for row in (best, base)]
    return {
        "Shape": shape_text(case),
        "dtype": case.dtype,
        "Pass": mode_text(case),
        "T (SDPA)": _short_time(base),
        "TC": f"{_short_time(tc)} {tc.backend}" if tc else MISSING,
        "DIFF": f"{_short_time(best)} {best.contender}" if best else "none ran",
        "DIFF / T": times(best.ratio_t) if best else MISSING,
        "TC / T": times(tc.ratio_t, spread=False) if tc else MISSING,
        "DIFF / TC": times(best.ratio_tc) if best else MISSING,
        "Peak memory, DIFF / T": ratio(*peaks) if all(peaks) else MISSING,
        "Targets": verdict_text(case),
        "Run": case.run,
    }


def model_row(case: BenchCase) -> dict[str, str]:
    """One row per model case: tokens per second, here and in the paper."""
    shape, diff = case.shape, case.row("diff")
    over_t = diff.ratio_t if diff else None
    return {
        "Size": str(shape.get("size")),
        "Layers": str(shape.get("layers")),
        "Tokens": f"{shape.get('B')} × {count(shape.get('N'))}",
        "dtype": case.dtype,
        "Pass": mode_text(case),
        **{title: _tokens(case.row(name)) for name, title in _MODEL_COLUMNS.items()},
        "DIFF V1 / T, tokens/s": f"{number(1 / over_t.median, 3)}×"
        if over_t and over_t.median
        else MISSING,
        "Paper: T, DIFF": _printed(case),
        "Targets": verdict_text(case),
        "Run": case.run,
    }


def generation_row(case: BenchCase) -> dict[str, str]:
    """One row per generation case: time of a prefill or of a decoding step."""
    shape = case.shape
    caches = (case.row(name) for name in ("softmax_sdpa", "diff", "diff_v2"))
    sizes = (mebibytes(row.cache_bytes if row else None) for row in caches)
    return {
        "Size": str(shape.get("size")),
        "Batch": str(shape.get("B")),
        "Context": count(shape.get("S", shape.get("N"))),
        "dtype": case.dtype,
        "Pass": mode_text(case),
        **{title: _time_and_rate(case.row(name)) for name, title in _GENERATION_COLUMNS.items()},
        "Cache, MiB: T, V1, V2": ", ".join(size.removesuffix(" MiB") for size in sizes),
        "Run": case.run,
    }


_TABLES: tuple[tuple[str, tuple[str, ...], Callable[[BenchCase], dict[str, str]]], ...] = (
    (
        "Attention: the fastest differential contender.",
        ("ops", "decode", "paged"),
        operator_row,
    ),
    (
        f"Models: tokens per second. Published: {THROUGHPUT_SOURCE}, on H100 GPUs.",
        ("models",),
        model_row,
    ),
    (
        "Generation: time to read a context, and of every further token per row, with its tokens "
        "per second. Folded: the low-rank updates of Shared DIFF added to its weights.",
        ("generation",),
        generation_row,
    ),
)


def case_tables(cases: Sequence[BenchCase]) -> list[Table]:
    """One table per kind of suite. A column without any value is left out."""
    tables = []
    for caption, suites, row_of in _TABLES:
        rows = [row_of(case) for case in cases if case.suite in suites]
        known = [name for name in (rows or [{}])[0] if any(row[name] != MISSING for row in rows)]
        rows = [{name: row[name] for name in known} for row in rows]
        tables += [record_table(caption, rows)] if rows else []
    return tables


def markdown(result: BenchResult, chosen: dict[str, str] | None = None) -> str:
    """Write the tables of a record as Markdown.

    Args:
        chosen: Key -> comma-separated values, as in the marks above. Default: all cases.

    Raises:
        ConfigError: The choice leaves no case.
    """
    cases = [case for case in result.cases if _is_chosen(case, chosen or {})]
    if not cases:
        raise ConfigError(f"bench table: the record must hold a case of {chosen}, got none.")
    runs = dict.fromkeys(case.run for case in cases)
    parts = [*map(table_markdown, case_tables(cases))]
    parts.append("\n".join(run_text(result, name) for name in runs) + "\n")
    return "\n".join(parts)


def replace_tables(text: str, root: Path) -> str:
    """``text`` with every marked table generated from its record under ``root``."""

    def table(match: re.Match[str]) -> str:
        head, name, options, _, end = match.groups()
        chosen = dict(part.split("=", 1) for part in options.split())
        return f"{head}{markdown(BenchResult.read(root / name), chosen)}{end}"

    return _MARKED.sub(table, text)


def _same_technique(case: BenchCase, best: BenchRow | None) -> BenchRow | None:
    """The TC with the backend of the fastest DIFF contender; else the fastest TC."""
    timed = [row for row in case.rows if row.role == "TC" and row.seconds]
    same = (row for row in timed if best and row.backend == best.backend)
    return next(same, fastest(case, "TC"))


def _short_time(row: BenchRow | None) -> str:
    if row is None or row.seconds is None:
        return MISSING
    return f"{figure(1e3 * row.seconds.median)} ms"


def _time_and_rate(row: BenchRow | None) -> str:
    if row is None or row.seconds is None:
        return MISSING
    return f"{_short_time(row)} ({count(row.tokens_per_second)} tokens/s)"


def _tokens(row: BenchRow | None) -> str:
    if row is None or row.tokens_per_second is None:
        return MISSING
    return f"{count(row.tokens_per_second)} ({row.backend})"


def _printed(case: BenchCase) -> str:
    key: Any = (case.shape.get("size"), case.shape.get("N"), case.mode)
    speeds = throughput().get(key)
    if case.device != "cuda" or speeds is None:
        return MISSING
    share = number(speeds.diff / speeds.transformer, 3)
    return f"{count(speeds.transformer)}, {count(speeds.diff)} ({share}×)"


def _is_chosen(case: BenchCase, chosen: dict[str, str]) -> bool:
    facts = {"suite": case.suite, "dtype": case.dtype, "mode": case.mode, **case.shape}
    return all(str(facts.get(name)) in values.split(",") for name, values in chosen.items())


if __name__ == "__main__":
    for argument in sys.argv[1:]:
        file = Path(argument).resolve()
        write_text(file, replace_tables(file.read_text(encoding="utf-8"), Path.cwd()))
