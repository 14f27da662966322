"""What the page of an evaluation folder shows, as plain values."""

import json
from collections.abc import Mapping, Sequence
from typing import Any

from diffattn.lab.records.evaluations import EvalResult, Metric, PairedDifference
from diffattn.lab.report.evaluation.charts import heat_maps, line_charts
from diffattn.lab.report.evaluation.files import EvaluationFolder
from diffattn.lab.report.evaluation.tables import value_with_interval
from diffattn.lab.report.evaluation.verdicts import parts_table, verdict_section
from diffattn.lab.report.page.tables import (
    Table,
    head_cell,
    number_cell,
    run_cell,
    table,
    word_cell,
)
from diffattn.lab.report.page.wording import MISSING, count, listing, number, plural, span

_BETTER = {True: "higher", False: "lower", None: MISSING}


def evaluation_page(
    folder: EvaluationFolder,
    published: Mapping[str, str] | None = None,
    claims: Table | None = None,
) -> dict[str, Any]:
    """Title, ``chapters`` (the title of every section by its id) and sections of the page.

    Args:
        folder: In memory.
        published: What papers print, by protocol. Default: nothing.
        claims: Verdicts on claims of papers. Default: none.
    """
    labels = _labels(folder)
    recorded = folder.comparison.differences if folder.comparison is not None else []
    shown = {
        (variant, str(result.model["label"]))
        for variant, results in folder.results.items()
        for result in results
    }
    differences = [
        one
        for one in recorded
        if one.over == "seeds" or {(one.variant, one.model), (one.variant, one.baseline)} <= shown
    ]
    failed = [
        f"{r.model['label']}, {variant}: {r.num_failed} of {r.num_items} items failed."
        for variant, results in folder.results.items()
        for r in results
        if r.num_failed
    ]
    protocols = [
        _protocol(variant, results, [d for d in differences if d.variant == variant], index)
        for index, (variant, results) in enumerate(folder.results.items())
    ]
    lead = (
        f"{plural(len(labels), 'model')}, {plural(len(folder.results), 'protocol')}. Values "
        "with their intervals; every answer stands in the items.jsonl beside each result, and "
        "'diffattn compare FOLDER --answers FILE.html' makes a page to read them in."
    )
    titles = {protocol["key"]: protocol["variant"] for protocol in protocols}
    of_variant = {variant: results[0].protocol for variant, results in folder.results.items()}
    verdicts = (
        None
        if folder.comparison is None
        else verdict_section(differences, of_variant, published or {})
    )
    firsts = {} if verdicts is None else {"verdicts": "What it shows"}
    firsts |= {} if claims is None else {"claims": "The papers' claims"}
    return {
        "title": f"Evaluation of {listing(labels)}",
        "chapters": firsts | {"overview": "Results"} | titles | {"provenance": "Provenance"},
        "verdicts": verdicts,
        "claims": claims,
        "lead": lead,
        "gaps": (*folder.gaps, *failed),
        "overview": _overview(folder, labels),
        "is_compared": folder.comparison is not None,
        "protocols": protocols,
        "models": _models_table(folder),
        "runs": _runs_table(folder),
    }


def _labels(folder: EvaluationFolder) -> list[str]:
    every = [str(r.model["label"]) for results in folder.results.values() for r in results]
    return list(dict.fromkeys(every))


def _overview(folder: EvaluationFolder, labels: Sequence[str]) -> Table:
    """One row per protocol and headline metric, one column per model."""
    rows = []
    for variant, results in folder.results.items():
        by_label = {str(r.model["label"]): r for r in results}
        headlines = dict.fromkeys((m.name, _where(m)) for r in results for m in r.headline())
        for name, where in headlines:
            metrics = [_headline(by_label.get(label), name, where) for label in labels]
            values = [MISSING if m is None else value_with_interval(m) for m in metrics]
            shown = [m for m in metrics if m is not None]
            counts = dict.fromkeys(m.n for m in shown)  # of failed items a model has fewer
            rows.append(
                [
                    head_cell(variant),
                    word_cell(f"{name} {where}".rstrip()),
                    *map(number_cell, values),
                    word_cell(_BETTER[shown[0].higher_is_better]),
                    number_cell(" / ".join(map(count, counts))),
                ]
            )
    headers = ["Protocol", "Metric", *labels, "Better", "n"]
    return table("What the papers' tables would print.", headers, rows)


def _protocol(
    variant: str, results: Sequence[EvalResult], differences: Sequence[PairedDifference], index: int
) -> dict[str, Any]:
    first, key = results[0], f"protocol-{index}"
    return {
        "key": key,
        "variant": variant,
        "source": f"{first.protocol}, version {first.version}. Source: {first.source}.",
        "lines": line_charts(results, f"{key}-chart-"),
        "heat_maps": heat_maps(results, f"{key}-chart-"),
        "parts": parts_table(differences),
        "differences": _differences_table(differences),
        "metrics": _metrics_table(results),
        "choices": first.choices,
        "parameters": json.dumps(first.parameters, indent=2, ensure_ascii=False),
    }


def _differences_table(differences: Sequence[PairedDifference]) -> Table | None:
    differences = [one for one in differences if not one.where]
    if not differences:
        return None
    rows = [
        [
            head_cell(paired.score),
            word_cell(
                f"{paired.model} − {paired.baseline}"
                + (", over seeds" if paired.over == "seeds" else "")
            ),
            number_cell(number(paired.difference, signed=True)),
            number_cell(span(paired.low, paired.high)),
            number_cell(number(paired.p_value, 3)),
            word_cell(paired.test),
            number_cell(count(paired.n)),
            number_cell(count(paired.num_unpaired + paired.num_other_text)),
        ]
        for paired in differences
    ]
    headers = ["Score", "Models", "Difference", "95 % interval", "p", "Test", "n", "Not paired"]
    return table("Model minus baseline, item by item.", headers, rows)


def _metrics_table(results: Sequence[EvalResult]) -> Table:
    rows = [
        [
            head_cell(str(result.model["label"])),
            word_cell(f"{metric.name} {_where(metric)}".rstrip()),
            number_cell(number(metric.value)),
            number_cell(span(metric.low, metric.high)),
            word_cell(metric.unit),
            number_cell(count(metric.n)),
            word_cell(metric.method),
        ]
        for result in results
        for metric in result.metrics
    ]
    headers = ["Model", "Metric", "Value", "95 % interval", "Unit", "n", "Interval by"]
    return table("Every metric.", headers, rows)


def _models_table(folder: EvaluationFolder) -> Table:
    models: dict[str, dict[str, Any]] = {
        str(r.model["label"]): r.model for results in folder.results.values() for r in results
    }
    rows = [
        [
            head_cell(label),
            word_cell(str(model.get("attention_type") or model.get("type"))),
            number_cell(count(model.get("parameters"))),
            word_cell(str(model.get("weights"))),
            word_cell(str(model.get("vocabulary"))),
            word_cell(f"{model.get('dtype')} on {model.get('device')}"),
            word_cell(str(model.get("path"))),
        ]
        for label, model in models.items()
    ]
    headers = ["Model", "Attention", "Parameters", "Weights", "Vocabulary", "Ran in", "Path"]
    return table("Models; weights and vocabulary as hashes.", headers, rows)


def _runs_table(folder: EvaluationFolder) -> Table:
    rows = [
        [
            head_cell(record.name),
            word_cell(record.created),
            word_cell((record.commit or "not recorded")[:12] + (" +" if record.dirty else "")),
            run_cell([", ".join(f"{k} {v}" for k, v in record.versions.items())]),
        ]
        for record in folder.records
    ]
    headers = ["Run", "Created", "Commit", "Versions"]
    return table("A + after a commit: changed files.", headers, rows)


def _headline(result: EvalResult | None, name: str, where: str) -> Metric | None:
    metrics = result.headline() if result else []
    return next((m for m in metrics if (m.name, _where(m)) == (name, where)), None)


def _where(metric: Metric) -> str:
    return ", ".join(f"{key} {value}" for key, value in metric.where.items())
