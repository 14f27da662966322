"""Benchmark records as tables. T and TC are always shown together."""

from collections.abc import Callable, Iterable, Sequence
from typing import Any

from diffattn.lab.records.results import BenchCase, BenchResult, BenchRow, Spread, shape_text
from diffattn.lab.report.page.elements import Bullets, Element, Fold, Section, Text
from diffattn.lab.report.page.tables import Table, record_table
from diffattn.lab.report.page.wording import (
    MISSING,
    count,
    is_number,
    mebibytes,
    number,
    ratio,
    span,
)
from diffattn.lab.report.paper import THROUGHPUT_SOURCE, throughput

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


def case_title(case: BenchCase) -> str:
    """Shape, dtype, timed pass, device and run."""
    shape, mode = shape_text(case.shape), mode_text(case)
    return f"{shape}, {case.dtype}, {mode} on {case.device} ({case.run})"


def mode_text(case: BenchCase) -> str:
    """The pass that was timed, as in ``"forward + backward"``."""
    return case.mode.replace("_", " + ")


def _fastest(case: BenchCase, role: str) -> BenchRow | None:
    timed = [row for row in case.rows if row.role == role and row.seconds]
    return min(timed, key=lambda row: row.seconds.median if row.seconds else 0.0, default=None)


def _times(value: Spread | None, *, spread: bool = True) -> str:
    if value is None:
        return MISSING
    text = f"{number(value.median, 2)}×"
    return f"{text} ({span(value.low, value.high, 2)})" if spread else text


def targets_in_words(cases: Iterable[BenchCase]) -> list[str]:
    """Sentences: how many targets were met, and one for each missed target."""
    verdicts = [(case, verdict) for case in cases for verdict in case.verdicts]
    if not verdicts:
        return ["We set no target for these shapes."]
    missed = [(case, verdict) for case, verdict in verdicts if not verdict.passed]
    return [f"{len(verdicts) - len(missed)} of {len(verdicts)} targets met."] + [
        f"Missed by {verdict.contender} at {shape_text(case.shape)}, {case.dtype}: "
        f"{verdict.target} is the {'goal' if verdict.goal else 'target'}, "
        f"measured {verdict.value:.2f} ×."
        for case, verdict in missed
    ]


def _verdict_text(case: BenchCase) -> str:
    """``"pass"``, ``"no target"``, or the missed targets of a case."""
    missed = [f"{v}: {v.contender}, {v.target}" for v in case.verdicts if not v.passed]
    return "; ".join(missed) or ("pass" if case.verdicts else "no target")


def run_text(result: BenchResult, name: str) -> str:
    """One line about a run: machine, versions, commit."""
    run = result.runs[name]
    machine = run.hardware.get("gpu") or run.hardware.get("processor")
    commit = "no commit" if run.commit is None else f"commit {run.commit[:12]}"
    changed = ", with uncommitted files" if run.dirty else ""
    threads = run.hardware.get("threads")
    return (
        f"{name}: {machine}, {threads} thread{'' if threads == 1 else 's'}, "
        f"torch {run.versions.get('torch')}, {run.created[:10]}, {commit}{changed}."
    )


def _figure(value: float) -> str:
    """Three significant digits without an exponent."""
    digits = 0 if value >= 100 else 1 if value >= 10 else 2 if value >= 1 else 3
    return number(value, digits)


def contender_rows(case: BenchCase) -> list[dict[str, str]]:
    """One row per timed contender, for a narrow screen. The record holds all numbers."""
    on_gpu, rows = any(row.host_seconds for row in case.rows), []
    for row in case.rows:
        if row.seconds is None:
            continue
        backend = "" if row.contender.endswith(row.backend or "") else f", {row.backend}"
        cells = {"contender": f"{row.role}: {row.contender}{backend}"}
        cells["ms"] = _figure(1e3 * row.seconds.median)
        if on_gpu:
            cells["host ms"] = _figure(1e3 * row.host_seconds) if row.host_seconds else MISSING
        cells["/ T"] = _times(row.ratio_t, spread=False)
        cells["/ TC"] = _times(row.ratio_tc, spread=False)
        if row.tokens_per_second is not None:
            cells["tokens/s"] = count(row.tokens_per_second)
        else:
            cells["memory"] = mebibytes(row.peak_bytes)
        cells["of peak"] = f"{number(100 * (row.share_of_peak or 0), 0)} %"
        check, cells["error"] = row.check or {}, MISSING  # as a share of the error's budget
        if is_number(check.get("error")) and check.get("budget"):
            cells["error"] = f"{number(100 * check['error'] / check['budget'], 0)} %"
        rows.append(cells)
    return rows


def _operator_row(case: BenchCase) -> dict[str, str]:
    base, best = _fastest(case, "T"), _fastest(case, "DIFF")
    # The same technique as the differential contender's if it was timed, else the fastest.
    techniques = [row for row in case.rows if row.role == "TC" and row.seconds]
    same = (row for row in techniques if best and row.backend == best.backend)
    tc = next(same, _fastest(case, "TC"))
    peaks = [row.peak_bytes if row else None for row in (best, base)]
    return {
        "Shape": shape_text(case.shape),
        "dtype": case.dtype,
        "Pass": mode_text(case),
        "T (SDPA)": _short_time(base),
        "TC": f"{_short_time(tc)} {tc.backend}" if tc else MISSING,
        "DIFF": f"{_short_time(best)} {best.contender}" if best else "none ran",
        "DIFF / T": _times(best.ratio_t) if best else MISSING,
        "TC / T": _times(tc.ratio_t, spread=False) if tc else MISSING,
        "DIFF / TC": _times(best.ratio_tc) if best else MISSING,
        "Peak memory, DIFF / T": ratio(*peaks) if all(peaks) else MISSING,
        "Targets": _verdict_text(case),
        "Run": case.run,
    }


def _model_row(case: BenchCase) -> dict[str, str]:
    shape, diff = case.shape, case.row("diff")
    over_t, printed = diff.ratio_t if diff else None, MISSING
    key: Any = (shape.get("size"), shape.get("N"), case.mode)
    if case.device == "cuda" and (speeds := throughput().get(key)) is not None:
        share = number(speeds.diff / speeds.transformer, 3)
        printed = f"{count(speeds.transformer)}, {count(speeds.diff)} ({share}×)"
    rows = {title: case.row(name) for name, title in _MODEL_COLUMNS.items()}
    return {
        "Size": str(shape.get("size")),
        "Layers": str(shape.get("layers")),
        "Tokens": f"{shape.get('B')} × {count(shape.get('N'))}",
        "dtype": case.dtype,
        "Pass": mode_text(case),
        **{
            title: MISSING
            if row is None or row.tokens_per_second is None
            else f"{count(row.tokens_per_second)} ({row.backend})"
            for title, row in rows.items()
        },
        "DIFF V1 / T, tokens/s": f"{number(1 / over_t.median, 3)}×"
        if over_t and over_t.median
        else MISSING,
        "Paper: T, DIFF": printed,
        "Targets": _verdict_text(case),
        "Run": case.run,
    }


def _generation_row(case: BenchCase) -> dict[str, str]:
    shape = case.shape
    caches = (case.row(name) for name in ("softmax_sdpa", "diff", "diff_v2"))
    sizes = (mebibytes(row.cache_bytes if row else None) for row in caches)
    rows = {title: case.row(name) for name, title in _GENERATION_COLUMNS.items()}
    return {
        "Size": str(shape.get("size")),
        "Batch": str(shape.get("B")),
        "Context": count(shape.get("S", shape.get("N"))),
        "dtype": case.dtype,
        "Pass": mode_text(case),
        **{title: _short_time(row, rate=True) for title, row in rows.items()},
        "Cache, MiB: T, V1, V2": ", ".join(size.removesuffix(" MiB") for size in sizes),
        "Run": case.run,
    }


def case_tables(cases: Sequence[BenchCase]) -> list[Table]:
    """One table per kind of suite. A column without any value is left out."""
    operators = "Attention: the fastest differential contender."
    models = f"Models: tokens per second. Published: {THROUGHPUT_SOURCE}, on H100 GPUs."
    generation = (
        "Generation: time to read a context, and of every further token per row, with its tokens "
        "per second. Folded: the low-rank updates of Shared DIFF added to its weights."
    )
    kinds: tuple[tuple[str, tuple[str, ...], Callable[[BenchCase], dict[str, str]]], ...] = (
        (operators, ("ops", "decode", "paged"), _operator_row),
        (models, ("models",), _model_row),
        (generation, ("generation",), _generation_row),
    )
    tables = []
    for caption, suites, row_of in kinds:
        rows = [row_of(case) for case in cases if case.suite in suites]
        known = [name for name in (rows or [{}])[0] if any(row[name] != MISSING for row in rows)]
        rows = [{name: row[name] for name in known} for row in rows]
        tables += [record_table(caption, rows)] if rows else []
    return tables


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
    for result in results:
        shown: list[Element] = [
            Bullets([run_text(result, name) for name in result.runs]),
            *case_tables(result.cases),
            Bullets(targets_in_words(result.cases)),
        ]
        suites = ", ".join(dict.fromkeys(case.suite for case in result.cases))
        content.append(Fold(f"{suites} ({' · '.join(result.runs)})", shown))
    return [Section("benchmarks", "Benchmarks", content)]


def _short_time(row: BenchRow | None, *, rate: bool = False) -> str:
    if row is None or row.seconds is None:
        return MISSING
    speed = f" ({count(row.tokens_per_second)} tokens/s)" if rate else ""
    return f"{_figure(1e3 * row.seconds.median)} ms{speed}"
