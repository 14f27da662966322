"""An evaluation's numbers for other programs: CSV, Markdown, LaTeX, lm-evaluation-harness."""

import csv
import io
import json
import math
from collections.abc import Mapping, Sequence
from typing import Any

from diffattn.lab.records.evaluations import Comparison, EvalResult, Metric
from diffattn.lab.report.evaluation.tables import difference_rows, metric_rows
from diffattn.lab.report.page.wording import markdown_table, one_line

_COLUMNS = (
    "kind", "protocol", "version", "variant", "name", "where", "model", "baseline", "value",
    "low", "high", "level", "method", "n", "unit", "p", "p_holm", "test", "primary", "over",
    "chance", "guess_ceiling", "verdict",
)  # fmt: skip
_LATEX = {
    "\\": r"\textbackslash{}", "&": r"\&", "%": r"\%", "$": r"\$", "#": r"\#", "_": r"\_",
    "{": r"\{", "}": r"\}", "~": r"\textasciitilde{}", "^": r"\textasciicircum{}",
    "−": "$-$", "–": "--", "—": "---", "λ": r"$\lambda$",
}  # fmt: skip

BEGINNINGS = {
    "csv": ",".join(_COLUMNS), "markdown": "| protocol |", "table": "| protocol |",
    "latex": r"\begin{tabular}{lll", "json": '{\n  "results": [', "lm-eval": '{\n  "results": {',
}  # fmt: skip
"""How every file begins, by format."""


def csv_text(results: Sequence[EvalResult], comparison: Comparison | None) -> str:
    """Every metric and every difference, one line each, numbers in full."""
    out = io.StringIO()
    writer = csv.DictWriter(out, _COLUMNS, restval="", lineterminator="\n")
    writer.writeheader()
    versions: dict[str, dict[str, Any]] = {}
    for result in results:
        version = {"protocol": result.protocol, "version": result.version}
        versions[result.variant] = version
        for metric in result.metrics:
            writer.writerow(
                version
                | {
                    "kind": "metric", "variant": result.variant, "name": metric.name,
                    "where": _where(metric.where), "model": result.model.get("label"),
                    "value": metric.value, "low": metric.low, "high": metric.high,
                    "level": metric.level, "method": metric.method, "n": metric.n,
                    "unit": metric.unit,
                }
            )  # fmt: skip
    for one in comparison.differences if comparison else ():
        writer.writerow(
            versions.get(one.variant, {})
            | {
                "kind": "difference", "variant": one.variant, "name": one.score,
                "where": _where(one.where), "model": one.model, "baseline": one.baseline,
                "value": one.difference, "low": one.low, "high": one.high, "level": one.level,
                "method": one.method, "n": one.n, "p": one.p_value, "p_holm": one.p_holm,
                "test": one.test, "primary": one.primary, "over": one.over,
                "chance": one.chance, "guess_ceiling": one.guess_ceiling, "verdict": one.verdict,
            }
        )  # fmt: skip
    return out.getvalue()


def markdown_text(results: Sequence[EvalResult], comparison: Comparison | None) -> str:
    """Headline metrics and differences as two Markdown tables."""
    tables = (
        markdown_table(list(rows[0]), (row.values() for row in rows)) + "\n"
        for rows in _tables(results, comparison)
    )
    return "\n".join(tables)


def latex_text(results: Sequence[EvalResult], comparison: Comparison | None) -> str:
    """Headline metrics and differences as two LaTeX tables, without any package."""
    lines: list[str] = []
    for rows in _tables(results, comparison):
        head, *others = [list(rows[0]), *(list(row.values()) for row in rows)]
        lines += [rf"\begin{{tabular}}{{{'l' * len(head)}}}", r"\hline"]
        lines.append(" & ".join(map(_latex, head)) + r" \\ \hline")
        lines += [" & ".join(map(_latex, row)) + r" \\" for row in others]
        lines += [r"\hline", r"\end{tabular}", ""]
    return "\n".join(lines)


def harness_results(results: Sequence[EvalResult]) -> dict[str, Any]:
    """Results of one model as lm-evaluation-harness writes its ``results_*.json``.

    The tasks of ``lm_tasks`` have the harness's own names and metrics. Of other protocols the
    headline metrics stand under ``VARIANT`` or ``VARIANT/WHERE``. A standard error is given for
    shares right of independent items of ``lm_tasks``; else it is ``"N/A"``, as the harness has it.

    Args:
        results: One or more, of one model.
    """
    model = results[0].model
    names = (
        "results", "group_subtasks", "configs", "versions", "n-shot", "higher_is_better",
        "n-samples",
    )  # fmt: skip
    found: dict[str, Any] = {name: {} for name in names}
    for result in results:
        shots = result.parameters.get("num_fewshot", 0)
        of_harness = result.protocol == "lm_tasks"
        for metric in result.metrics:
            if not (metric.headline or of_harness):
                continue
            name = _task(result, metric)
            error: float | str = "N/A"
            if of_harness and metric.method == "Wilson" and metric.n > 1:
                error = math.sqrt(metric.value * (1 - metric.value) / (metric.n - 1))
            entry = found["results"].setdefault(name, {"alias": name})
            entry |= {f"{metric.name},none": metric.value, f"{metric.name}_stderr,none": error}
            found["configs"][name] = {
                "task": name, "num_fewshot": shots,
                "metadata": {"version": result.version, "protocol": result.protocol},
            }  # fmt: skip
            better = found["higher_is_better"].setdefault(name, {})
            better[metric.name] = metric.higher_is_better
            found["versions"][name], found["n-shot"][name] = result.version, shots
            found["n-samples"][name] = {"original": metric.n, "effective": metric.n}
            found["group_subtasks"][name] = []
    found["config"] = {
        "model": "diffattn", "model_args": f"pretrained={model.get('path')}",
        "model_num_parameters": model.get("parameters"), "model_dtype": model.get("dtype"),
        "limit": results[0].selection.get("limit"), "model_label": model.get("label"),
        "weights": model.get("weights"),
    }  # fmt: skip
    return found


def harness_text(results: Sequence[EvalResult]) -> str:
    """:func:`harness_results` as a file."""
    return json.dumps(harness_results(results), indent=2, ensure_ascii=False) + "\n"


def _task(result: EvalResult, metric: Metric) -> str:
    if result.protocol == "lm_tasks":
        return str(metric.where.get("task", result.variant))
    where = _where(metric.where)
    return f"{result.variant}/{where}" if where else result.variant


def _where(where: Mapping[str, Any]) -> str:
    return ";".join(f"{key}={value}" for key, value in where.items())


def _tables(
    results: Sequence[EvalResult], comparison: Comparison | None
) -> list[list[dict[str, str]]]:
    tables = [metric_rows(results), difference_rows(comparison) if comparison else []]
    return [rows for rows in tables if rows]


def _latex(text: str) -> str:
    return "".join(_LATEX.get(letter, letter) for letter in one_line(text))
