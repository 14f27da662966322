"""Benchmark records in words and in Markdown; T and TC always stand together.

``python -m diffattn.lab.report.benchmarks.tables FILE`` regenerates every table of a Markdown file
that
stands between ``<!-- bench: RECORD KEY=VALUE... -->`` and ``<!-- /bench -->``. Keys are ``suite``,
``dtype``, ``mode`` and those of the shapes; values may be several, separated by commas. Records are
named from the folder where the command is called.
"""

import re
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from diffattn.errors import CheckpointError, ConfigError
from diffattn.files.io import write_text
from diffattn.lab.records.results import BenchCase, BenchResult, BenchRow
from diffattn.lab.report.benchmarks.wording import (
    check_text,
    fastest,
    figure,
    milliseconds,
    mode_text,
    run_text,
    shape_text,
    times,
    verdict_text,
)
from diffattn.lab.report.page.wording import MISSING, count, markdown_table, mebibytes, number
from diffattn.lab.report.paper import THROUGHPUT

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
    """One row per contender, with everything that was measured."""
    is_rate = any(row.tokens_per_second is not None for row in case.rows)
    return [
        {
            "contender": f"{row.role}: {row.contender}" + _backend(row),
            "time": milliseconds(row.seconds),
            "/ T": times(row.ratio_t),
            "/ TC": times(row.ratio_tc),
            "rounds": str(row.seconds.rounds) if row.seconds else MISSING,
            **_rate_cells(row, is_rate),
            "check": check_text(row),
        }
        for row in case.rows
    ]


def operator_table(cases: Sequence[BenchCase]) -> tuple[list[str], list[list[str]]]:
    """Headers and cells of operator and decode cases, one row each."""
    headers = ["Shape", "dtype", "Pass", "T (SDPA)", "TC", "DIFF", "DIFF / T", "TC / T"]
    headers += ["DIFF / TC", "Peak memory, DIFF / T", "Targets", "Run"]
    rows = []
    for case in cases:
        base, best = fastest(case, "T"), fastest(case, "DIFF")
        tc = _same_technique(case, best)
        rows.append(
            [
                shape_text(case),
                case.dtype,
                mode_text(case),
                _short_time(base),
                f"{_short_time(tc)} {tc.backend}" if tc else MISSING,
                f"{_short_time(best)} {best.contender}" if best else "none ran",
                times(best.ratio_t) if best else MISSING,
                times(tc.ratio_t, spread=False) if tc else MISSING,
                times(best.ratio_tc) if best else MISSING,
                _memory_ratio(best, base),
                verdict_text(case),
                case.run,
            ]
        )
    return headers, rows


def model_table(cases: Sequence[BenchCase]) -> tuple[list[str], list[list[str]]]:
    """Headers and cells of model cases: tokens per second, one row per case."""
    with_paper = any(_paper(case) for case in cases)
    headers = ["Size", "Layers", "Tokens", "dtype", "Pass", *_MODEL_COLUMNS.values()]
    headers += ["DIFF V1 / T, tokens/s", *(["Paper: T, DIFF"] if with_paper else [])]
    headers += ["Targets", "Run"]
    rows = []
    for case in cases:
        shape, diff = case.shape, case.row("diff")
        cells = [str(shape.get("size")), str(shape.get("layers"))]
        cells += [f"{shape.get('B')} × {count(shape.get('N'))}", case.dtype, mode_text(case)]
        cells += [_tokens(case.row(name)) for name in _MODEL_COLUMNS]
        ratio = diff.ratio_t if diff else None
        cells.append(f"{number(1 / ratio.median, 3)}×" if ratio and ratio.median else MISSING)
        rows.append([*cells, *([_paper(case) or MISSING] if with_paper else []),
                     verdict_text(case), case.run])  # fmt: skip
    return headers, rows


def generation_table(cases: Sequence[BenchCase]) -> tuple[list[str], list[list[str]]]:
    """Headers and cells of generation cases: time of a prefill or of a step, one row per case."""
    headers = ["Size", "Batch", "Context", "dtype", "Pass", *_GENERATION_COLUMNS.values()]
    headers += ["Cache, MiB: T, V1, V2", "Run"]
    rows = []
    for case in cases:
        shape = case.shape
        cells = [str(shape.get("size")), str(shape.get("B")), count(shape.get("S", shape.get("N")))]
        cells += [case.dtype, mode_text(case)]
        cells += [_time_and_rate(case.row(name)) for name in _GENERATION_COLUMNS]
        caches = (case.row(name) for name in ("softmax_sdpa", "diff", "diff_v2"))
        sizes = (mebibytes(row.cache_bytes if row else None) for row in caches)
        rows.append([*cells, ", ".join(size.removesuffix(" MiB") for size in sizes), case.run])
    return headers, rows


def markdown(result: BenchResult, chosen: dict[str, str] | None = None) -> str:
    """The tables of a record as Markdown.

    Args:
        result: The record.
        chosen: Keys and their comma-separated values, as in the marks. Default: everything.

    Raises:
        ConfigError: The choice leaves no case.
    """
    cases = [case for case in result.cases if _is_chosen(case, chosen or {})]
    if not cases:
        raise ConfigError(f"bench table: the record must hold a case of {chosen}, got none.")
    parts = []
    for suites, make in _TABLES:
        of_suite = [case for case in cases if case.suite in suites]
        if of_suite:
            headers, rows = make(of_suite)
            parts.append(markdown_table(headers, rows) + "\n")
    used = dict.fromkeys(case.run for case in cases)
    parts.append("\n".join(run_text(result, name) for name in used) + "\n")
    return "\n".join(parts)


_TABLES = (
    (("ops", "decode", "paged"), operator_table),
    (("models",), model_table),
    (("generation",), generation_table),
)


def replace_tables(text: str, root: Path) -> str:
    """``text`` with every marked table generated from its record under ``root``."""

    def table(match: re.Match[str]) -> str:
        head, name, options, _, end = match.groups()
        chosen = dict(part.split("=", 1) for part in options.split())
        return f"{head}{markdown(BenchResult.read(root / name), chosen)}{end}"

    return _MARKED.sub(table, text)


def read_results(paths: Iterable[Path]) -> list[BenchResult]:
    """Records of files and of folders of files, in the order of their names.

    Raises:
        CheckpointError: A path does not exist or a file is damaged or of another kind.
    """
    results: list[BenchResult] = []
    for path in paths:
        if not path.exists():
            raise CheckpointError(f"{path}: benchmark record must exist, got none.")
        files = sorted(path.glob("*.json")) if path.is_dir() else [path]
        results += [BenchResult.read(file) for file in files]
    return results


def _backend(row: BenchRow) -> str:
    """What ran, where the name does not say it."""
    return "" if row.backend in (None, row.contender) else f", {row.backend}"


def _rate_cells(row: BenchRow, is_rate: bool) -> dict[str, str]:
    """Columns that all rows of a case share: a contender that failed has none of the numbers."""
    if is_rate:
        return {"tokens/s": count(row.tokens_per_second), **_share(row)}
    return {"peak": mebibytes(row.peak_bytes), "held": mebibytes(row.held_bytes), **_share(row)}


def _share(row: BenchRow) -> dict[str, str]:
    rate = None if row.flops_per_second is None else row.flops_per_second / 1e9
    share = None if row.share_of_peak is None else 100 * row.share_of_peak
    text = MISSING if share is None else f"{number(share, 0)} %"
    return {"GFLOP/s": number(rate, 1), "of matmul peak": text}


def _same_technique(case: BenchCase, best: BenchRow | None) -> BenchRow | None:
    """TC of the fastest DIFF contender; else the fastest TC there is."""
    timed = [row for row in case.rows if row.role == "TC" and row.seconds]
    same = (row for row in timed if best and row.backend == best.backend)
    return next(same, fastest(case, "TC"))


def _memory_ratio(row: BenchRow | None, base: BenchRow | None) -> str:
    if row is None or base is None or not row.peak_bytes or not base.peak_bytes:
        return MISSING
    return f"{number(row.peak_bytes / base.peak_bytes, 2)}×"


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


def _paper(case: BenchCase) -> str | None:
    key: Any = (case.shape.get("size"), case.shape.get("N"), case.mode)
    if case.device != "cuda" or key not in THROUGHPUT:
        return None
    printed = THROUGHPUT[key]
    share = number(printed.diff / printed.transformer, 3)
    return f"{count(printed.transformer)}, {count(printed.diff)} ({share}×)"


def _is_chosen(case: BenchCase, chosen: dict[str, str]) -> bool:
    facts = {"suite": case.suite, "dtype": case.dtype, "mode": case.mode, **case.shape}
    return all(str(facts.get(name)) in values.split(",") for name, values in chosen.items())


if __name__ == "__main__":
    for argument in sys.argv[1:]:
        file = Path(argument).resolve()
        write_text(file, replace_tables(file.read_text(encoding="utf-8"), Path.cwd()))
