"""An evaluation's numbers for other programs: CSV, Markdown, lm-evaluation-harness."""

import csv
import io
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

from diffattn.lab.records.evaluations import Comparison, EvalResult
from diffattn.lab.report.evaluation.tables import difference_rows, metric_rows
from diffattn.lab.report.page.tables import record_table, table_markdown

_COLUMNS = (
    "kind", "protocol", "version", "variant", "name", "where", "model", "baseline", "value",
    "low", "high", "level", "method", "n", "unit", "p", "p_holm", "test", "primary", "over",
    "chance", "guess_ceiling", "verdict",
)  # fmt: skip
BEGINNINGS = {
    "csv": ",".join(_COLUMNS),
    "markdown": "| Protocol |",
    "table": "| Protocol |",
    "json": '{\n  "results": [',
    "lm-eval": '{\n  "results": {',
}
"""Format -> beginning of its files, by which a file of ours is known."""


def csv_text(results: Sequence[EvalResult], comparison: Comparison | None) -> str:
    """Write all metrics and differences, one line each, with all digits."""
    out = io.StringIO()
    writer = csv.DictWriter(out, _COLUMNS, extrasaction="ignore", lineterminator="\n")
    writer.writeheader()
    versions: dict[str, dict[str, Any]] = {}
    for result in results:
        version = {"protocol": result.protocol, "version": result.version}
        versions[result.variant] = version
        for metric in result.metrics:
            row = asdict(metric) | version | {"kind": "metric", "variant": result.variant}
            row |= {"where": _where(metric.where), "model": result.model.get("label")}
            writer.writerow(row)
    for pair in comparison.differences if comparison else ():
        row = asdict(pair) | versions.get(pair.variant, {})
        row |= {"kind": "difference", "name": pair.score, "where": _where(pair.where)}
        writer.writerow(row | {"value": pair.difference, "p": pair.p_value})
    return out.getvalue()


def markdown_text(results: Sequence[EvalResult], comparison: Comparison | None) -> str:
    """Write headline metrics and differences as two Markdown tables."""
    tables = [metric_rows(results), difference_rows(comparison) if comparison else []]
    return "\n".join(table_markdown(record_table("", rows)) for rows in tables if rows)


def harness_text(results: Sequence[EvalResult]) -> str:
    """Write results of one model as lm-evaluation-harness writes its ``results_*.json``.

    Tasks of ``lm_tasks`` have the names and metrics of the harness. Headline metrics of other
    protocols are named ``VARIANT`` or ``VARIANT/WHERE``. Only shares of independent items in
    ``lm_tasks`` have standard errors. All others are ``"N/A"``, as in the harness.
    """
    names = ("results", "group_subtasks", "configs", "versions", "n-shot", "n-samples")
    model = results[0].model
    parts: dict[str, Any] = {name: {} for name in (*names, "higher_is_better")}
    for result in results:
        of_harness, shots = result.protocol == "lm_tasks", result.parameters.get("num_fewshot", 0)
        for metric in result.metrics:
            if not (metric.headline or of_harness):
                continue
            where = _where(metric.where)
            name = f"{result.variant}/{where}" if where else result.variant
            error: float | str = "N/A"
            if of_harness:
                name = str(metric.where.get("task", result.variant))
                if metric.method == "Wilson" and metric.n > 1:
                    error = math.sqrt(metric.value * (1 - metric.value) / (metric.n - 1))
            entry = parts["results"].setdefault(name, {"alias": name})
            entry |= {f"{metric.name},none": metric.value, f"{metric.name}_stderr,none": error}
            parts["configs"][name] = {
                "task": name,
                "num_fewshot": shots,
                "metadata": {"version": result.version, "protocol": result.protocol},
            }
            parts["higher_is_better"].setdefault(name, {})[metric.name] = metric.higher_is_better
            parts["versions"][name], parts["n-shot"][name] = result.version, shots
            parts["n-samples"][name] = {"original": metric.n, "effective": metric.n}
            parts["group_subtasks"][name] = []
    parts["config"] = {
        "model": "diffattn",
        "model_args": f"pretrained={model.get('path')}",
        "model_num_parameters": model.get("parameters"),
        "model_dtype": model.get("dtype"),
        "limit": results[0].selection.get("limit"),
        "model_label": model.get("label"),
        "weights": model.get("weights"),
    }
    return json.dumps(parts, indent=2, ensure_ascii=False) + "\n"


def _where(where: Mapping[str, Any]) -> str:
    return ";".join(f"{key}={value}" for key, value in where.items())
