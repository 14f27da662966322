"""The page of an evaluation folder."""

import json
from collections.abc import Mapping, Sequence

from diffattn.lab.records.evaluations import EvalResult, Metric, PairedDifference
from diffattn.lab.report.evaluation.charts import heat_maps, line_charts
from diffattn.lab.report.evaluation.files import EvaluationFolder
from diffattn.lab.report.evaluation.tables import label_of, place_text, value_with_interval
from diffattn.lab.report.evaluation.verdicts import difference_tables, verdict_section
from diffattn.lab.report.page.elements import (
    Bullets,
    Code,
    Document,
    Element,
    Fold,
    Pair,
    Section,
    Terms,
    Text,
)
from diffattn.lab.report.page.tables import Cell, Table, record_table, run_cell, table
from diffattn.lab.report.page.wording import MISSING, count, listing, number, plural, span

_MANY = 6
"""The title names at most so many models."""
_BETTER = {True: "higher", False: "lower", None: MISSING}
_CLAIMS = (
    "Effects over seeds of the models, with 95 % intervals; none is tested. These models are not "
    "of the papers' sizes."
)
_COMPARED = (
    "The section of each protocol shows its charts and the differences between the models, over "
    "the items that both answered. Its p-values are two-sided and not adjusted for making several "
    "comparisons. Of twenty, one below 0.05 is expected where nothing differs."
)


def evaluation_document(
    folder: EvaluationFolder,
    published: Mapping[str, str] | None = None,
    claims: Table | None = None,
) -> Document:
    """Assemble the page of an evaluation folder."""
    results = [result for of_variant in folder.results.values() for result in of_variant]
    labels = list(dict.fromkeys(map(label_of, results)))
    differences = _shown_differences(folder)
    failed = [
        f"{label_of(result)}, {result.variant}: {result.num_failed} of {result.num_items} items "
        "failed."
        for result in results
        if result.num_failed
    ]
    sections: list[Section] = []
    if folder.comparison is not None:
        protocols = {variant: entries[0].protocol for variant, entries in folder.results.items()}
        sections += verdict_section(differences, protocols, published or {})
    if claims is not None:
        sections.append(Section("claims", "The papers' claims", [Text(_CLAIMS), claims]))
    note = [Text(_COMPARED)] if folder.comparison is not None else []
    sections.append(Section("overview", "Results", [_overview(folder, labels), *note]))
    for index, (variant, entries) in enumerate(folder.results.items()):
        own_differences = [pair for pair in differences if pair.variant == variant]
        sections.append(_protocol_section(f"protocol-{index}", entries, own_differences))
    provenance: list[Element] = [_models_table(results), Fold("Runs", [_runs_table(folder)])]
    sections.append(Section("provenance", "Provenance", provenance))
    names = listing(labels) if len(labels) <= _MANY else plural(len(labels), "model")
    return Document(
        title=f"Evaluation of {names}",
        lead=[
            Text(
                f"{plural(len(labels), 'model')}, {plural(len(folder.results), 'protocol')}. "
                "Values have their intervals. Every answer stands in the items.jsonl beside each "
                "result; 'diffattn compare FOLDER --answers FILE.html' makes a page of them.",
                "lead",
            ),
            Bullets((*folder.gaps, *failed), "What is missing or unequal", "gap"),
        ],
        sections=sections,
    )


def _shown_differences(folder: EvaluationFolder) -> list[PairedDifference]:
    """Differences of models whose results could be read."""
    if folder.comparison is None:
        return []
    shown = {
        (variant, label_of(result))
        for variant, results in folder.results.items()
        for result in results
    }
    return [
        pair
        for pair in folder.comparison.differences
        if pair.over == "seeds"
        or {(pair.variant, pair.model), (pair.variant, pair.baseline)} <= shown
    ]


def _overview(folder: EvaluationFolder, labels: Sequence[str]) -> Table:
    """Show the headline metrics: one row per protocol and metric, one column per model."""
    rows = []
    for variant, results in folder.results.items():
        by_name: dict[str, dict[str, Metric]] = {}
        for result in results:
            for metric in result.headline():
                by_name.setdefault(_metric_name(metric), {})[label_of(result)] = metric
        for name, metrics in by_name.items():
            values = [
                value_with_interval(metrics[label]) if label in metrics else MISSING
                for label in labels
            ]
            better = _BETTER[next(iter(metrics.values())).higher_is_better]
            # n differs between models if items failed.
            counts = dict.fromkeys(metrics[label].n for label in labels if label in metrics)
            rows.append([variant, name, *values, better, " / ".join(map(count, counts))])
    headers = ["Protocol", "Metric", *labels, "Better", "n"]
    return table("The numbers that the papers' tables would print.", headers, rows)


def _protocol_section(
    key: str, results: Sequence[EvalResult], differences: Sequence[PairedDifference]
) -> Section:
    first, prefix = results[0], f"{key}-chart-"
    content: list[Element] = [
        Text(f"{first.protocol}, version {first.version}. Source: {first.source}."),
        Pair(line_charts(results, prefix)),
        *map(Pair, heat_maps(results, prefix)),
        *difference_tables(differences),
        Fold("Every metric", [_metrics_table(results)]),
        Fold("What the source leaves open, and our choices", [Terms(first.choices)]),
        Fold("Parameters", [Code(json.dumps(first.parameters, indent=2, ensure_ascii=False))]),
    ]
    return Section(key, first.variant, content)


def _metrics_table(results: Sequence[EvalResult]) -> Table:
    rows = [
        {
            "Model": label_of(result),
            "Metric": _metric_name(metric),
            "Value": number(metric.value),
            "95 % interval": span(metric.low, metric.high),
            "Unit": metric.unit,
            "n": count(metric.n),
            "Interval by": metric.method,
        }
        for result in results
        for metric in result.metrics
    ]
    return record_table("Every metric.", rows)


def _models_table(results: Sequence[EvalResult]) -> Table:
    models = {label_of(result): result.model for result in results}
    rows = [
        {
            "Model": label,
            "Attention": str(model.get("attention_type") or model.get("type")),
            "Parameters": count(model.get("parameters")),
            "Weights": str(model.get("weights")),
            "Vocabulary": str(model.get("vocabulary")),
            "Ran in": f"{model.get('dtype')} on {model.get('device')}",
            "Path": str(model.get("path")),
        }
        for label, model in models.items()
    ]
    return record_table("Models; weights and vocabulary as hashes.", rows)


def _runs_table(folder: EvaluationFolder) -> Table:
    rows: list[list[Cell | str]] = [
        [
            record.name,
            record.created,
            (record.commit or "not recorded")[:12] + (" +" if record.dirty else ""),
            run_cell([", ".join(f"{key} {value}" for key, value in record.versions.items())]),
        ]
        for record in folder.records
    ]
    headers = ["Run", "Created", "Commit", "Versions"]
    return table("A + after a commit: changed files.", headers, rows)


def _metric_name(metric: Metric) -> str:
    return f"{metric.name} {place_text(metric.where)}".rstrip()
