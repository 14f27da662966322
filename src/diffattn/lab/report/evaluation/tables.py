"""Evaluation results as rows of tables, and for other programs."""

import csv
import io
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

from diffattn.lab.records.evaluations import Comparison, EvalResult, Metric, PairedDifference
from diffattn.lab.report.page.tables import Table, record_table, table_markdown
from diffattn.lab.report.page.wording import MISSING, count, label_of, number, p_value, pairs, span


def metric_name(metric: Metric) -> str:
    """The name, and where it was measured."""
    return f"{metric.name} {pairs(metric.where)}".rstrip()


def metric_rows(results: Sequence[EvalResult]) -> list[dict[str, str]]:
    """The headline metrics, one column per model; an arrow says which direction is better."""
    labels = dict.fromkeys(map(label_of, results), MISSING)
    rows: dict[tuple[str, str], dict[str, str]] = {}
    for result in results:
        for metric in result.headline():
            name = (
                metric_name(metric) + {True: " ↑", False: " ↓", None: ""}[metric.higher_is_better]
            )
            row = {"Protocol": result.variant, "Metric": name} | labels
            row = rows.setdefault((result.variant, name), row)
            row[label_of(result)] = value_with_interval(metric)
    return list(rows.values())


def difference_rows(comparison: Comparison) -> list[dict[str, str]]:
    """Differences over all items and over seeds, one row each."""
    columns = ("Protocol", "Score", "Models", "Difference", "95 % interval", "p", "p, Holm", "Test")
    whole = [pair for pair in comparison.differences if not pair.where]
    return _difference_rows((*columns, "n", "Verdict"), whole)


def results_json(results: Sequence[EvalResult], comparison: Comparison | None) -> str:
    """Results, and the comparison if there is one, as JSON."""
    values = {"results": [asdict(result) for result in results]}
    if comparison is not None:
        values["comparison"] = [asdict(comparison)]
    return json.dumps(values, indent=2, ensure_ascii=False)


def value_with_interval(metric: Metric) -> str:
    """Format as ``0.840 (0.715 to 0.917)``; large values have fewer digits."""
    size = abs(metric.value)
    digits = 0 if metric.unit == "tokens" or size >= 1_000 else 1 if size >= 100 else 3
    bounds = [end for end in (metric.low, metric.high) if end is not None]
    huge = max(map(abs, [metric.value, *bounds])) >= 1e7
    value, *ends = (f"{x:.3g}" if huge else number(x, digits) for x in (metric.value, *bounds))
    return f"{value} ({ends[0]} to {ends[1]})" if len(ends) == 2 else value


def difference_tables(differences: Sequence[PairedDifference]) -> list[Table]:
    """Show the primary score part by part, and all scores over all items; empty without them."""
    parts = [pair for pair in differences if pair.where and pair.over == "items"]
    whole = [pair for pair in differences if not pair.where]
    shared = ["Models", "Difference", "95 % interval", "p", "Test", "n"]
    tables = []
    if parts:
        caption = (
            f"{parts[0].score}, part by part. p-values are not adjusted: with {len(parts)} rows, "
            f"{len(parts) / 20:.1f} below 0.05 are expected where nothing differs."
        )
        columns = ["Part", *shared, "Model / baseline", "Best guess"]
        tables.append(difference_table(caption, columns, parts))
    if whole:
        columns = ["Score", *shared, "Not paired"]
        tables.append(difference_table("Model minus baseline, item by item.", columns, whole))
    return tables


def difference_table(
    caption: str, columns: Sequence[str], differences: Sequence[PairedDifference]
) -> Table:
    """Show some columns of differences, one row each."""
    return record_table(caption, _difference_rows(columns, differences))


def _difference_rows(
    columns: Sequence[str], differences: Sequence[PairedDifference]
) -> list[dict[str, str]]:
    rows = []
    for pair in differences:
        over, seeds = (", over seeds", " seeds") if pair.over == "seeds" else ("", "")
        cells = {
            "Protocol": pair.variant,
            "Score": pair.score,
            "Part": pairs(pair.where),
            "Models": f"{pair.model} − {pair.baseline}{over}",
            "Verdict": pair.verdict,
            "Difference": number(pair.difference, signed=True),
            "95 % interval": span(pair.low, pair.high),
            "p": p_value(pair.p_value),
            "p, Holm": p_value(pair.p_holm),
            "Test": pair.test,
            "n": f"{count(pair.n)}{seeds}",
            "Model / baseline": _pair_text(pair.value, pair.baseline_value),
            "Chance / best guess": _pair_text(pair.chance, pair.guess_ceiling),
            "Best guess": number(pair.guess_ceiling, 3),
            "Not paired": count(pair.num_unpaired + pair.num_other_text),
        }
        rows.append({column: cells[column] for column in columns})
    return rows


def _pair_text(first: float | None, second: float | None) -> str:
    values = (first, second)
    return MISSING if values == (None, None) else " / ".join(number(x, 3) for x in values)


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
