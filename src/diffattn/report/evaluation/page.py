"""The page of an evaluation folder: what every model answered, compared item by item."""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from string import Template
from typing import Any

from plotly.offline import get_plotlyjs

from diffattn.errors import CheckpointError
from diffattn.records.evaluations import (
    Comparison,
    EvalResult,
    Metric,
    PairedDifference,
    require_kind,
)
from diffattn.records.io import read_json, write_text
from diffattn.records.run import RunRecord
from diffattn.report.evaluation.charts import protocol_charts
from diffattn.report.evaluation.tables import value_with_interval
from diffattn.report.page.cells import number_cell, run_cell, table, word_cell
from diffattn.report.page.wording import MISSING, count, esc, listing, number, plural

_TEMPLATE = Path(__file__).parents[1] / "templates" / "report.html"
_PAIRED_NOTE = (
    "<p>Each protocol's section shows its charts and the differences between the models, over the "
    "items that both answered. p-values are two-sided and not adjusted for making several "
    "comparisons: with twenty of them, one below 0.05 is expected where nothing differs.</p>\n"
)


@dataclass(frozen=True, kw_only=True, slots=True)
class EvaluationFolder:
    """An evaluation folder in memory."""

    results: dict[str, list[EvalResult]]
    """By variant; one result per model that has finished it."""
    records: list[RunRecord]
    comparison: Comparison | None
    gaps: tuple[str, ...]


def is_evaluation_folder(folder: Path) -> bool:
    """Whether ``diffattn evaluate`` wrote this folder."""
    return (Path(folder) / "evaluation.json").exists()


def read_evaluation(folder: Path) -> EvaluationFolder:
    """Read an evaluation folder; what is missing stands in ``gaps``.

    Raises:
        CheckpointError: ``evaluation.json`` is missing, or a file is damaged or of another kind.
    """
    folder = Path(folder)
    path = folder / "evaluation.json"
    marker = require_kind(read_json(path), "evaluation folder", path)
    results: dict[str, list[EvalResult]] = {}
    records, gaps = [], []
    for variant in marker["variants"]:
        for label in marker["models"]:
            own = folder / label / variant
            if (own / "result.json").exists():
                results.setdefault(variant, []).append(EvalResult.read(own))
                records.append(RunRecord.read(own))
            else:
                gaps.append(f"{label} has no result of {variant}.")
    for variant, found in results.items():
        if len({result.version for result in found}) > 1:
            raise CheckpointError(
                f"{folder}: results of {variant} must have one protocol version to share a table, "
                f"got {sorted({result.version for result in found})}."
            )
    comparison = Comparison.read(folder) if (folder / "comparison.json").exists() else None
    absent = tuple(gaps)
    if comparison:  # what has no result is not told a second time
        gaps += [one for one in comparison.skipped if not one.endswith(absent)]
        gaps += comparison.notes
    return EvaluationFolder(
        results=results, records=records, comparison=comparison, gaps=tuple(gaps)
    )


def build_evaluation_report(folder: Path, out: Path | None = None) -> Path:
    """Write one HTML file that shows an evaluation folder and needs no network.

    Args:
        folder: Written by ``diffattn evaluate``.
        out: File to write. Default ``folder / "report.html"``.

    Returns:
        The file written.

    Raises:
        CheckpointError: A file is damaged, or of another kind, schema or protocol version.
    """
    folder = Path(folder)
    found = read_evaluation(folder)
    sections = [_overview(found)]
    chapters = [("overview", "Results")]
    differences = found.comparison.differences if found.comparison is not None else []
    for index, (variant, results) in enumerate(found.results.items()):
        key = f"protocol-{index}"
        own = [one for one in differences if one.variant == variant]
        sections.append(_protocol(variant, results, own, key))
        chapters.append((key, variant))
    sections.append(_provenance(found))
    chapters.append(("provenance", "Provenance"))
    page = Template(_TEMPLATE.read_text(encoding="utf-8")).substitute(
        title=esc(f"Evaluation of {listing(_labels(found))}"),
        plotly=get_plotlyjs(),
        chapters="".join(f'<a href="#{key}">{esc(title)}</a>' for key, title in chapters),
        body="".join(sections),
    )
    target = folder / "report.html" if out is None else Path(out)
    target.parent.mkdir(parents=True, exist_ok=True)
    write_text(target, page)
    return target


def _labels(found: EvaluationFolder) -> list[str]:
    every = [str(r.model["label"]) for results in found.results.values() for r in results]
    return list(dict.fromkeys(every))


def _overview(found: EvaluationFolder) -> str:
    labels = _labels(found)
    rows = []
    for variant, results in found.results.items():
        by_label = {str(r.model["label"]): r for r in results}
        for name, where in dict.fromkeys(
            (m.name, _where(m)) for r in results for m in r.headline()
        ):
            cells = []
            for label in labels:
                metric = _find(by_label.get(label), name, where)
                cells.append(
                    number_cell(MISSING if metric is None else value_with_interval(metric))
                )
            first = next(m for r in results for m in r.headline() if m.name == name)
            rows.append(
                [
                    f'<th scope="row">{esc(variant)}</th>',
                    word_cell(esc(" ".join(filter(None, [name, where])))),
                    *cells,
                    word_cell(esc(_direction(first))),
                    number_cell(count(first.n)),
                ]
            )
    failed = [
        f"{r.model['label']}, {variant}: {r.num_failed} of {r.num_items} items failed."
        for variant, results in found.results.items()
        for r in results
        if r.num_failed
    ]
    gaps = "".join(f"<li>{esc(gap)}</li>" for gap in [*found.gaps, *failed])
    note = f'<div class="gap"><strong>What is missing or unequal</strong><ul>{gaps}</ul></div>\n'
    return (
        f'<p class="lead">{plural(len(labels), "model")}, '
        f"{plural(len(found.results), 'protocol')}. Values with their intervals; every answer "
        f"stands in the items.jsonl beside each result.</p>\n{note if gaps else ''}"
        '<section id="overview">\n<h2>Results</h2>\n'
        + table(
            "What the papers' tables would print.",
            ["Protocol", "Metric", *map(esc, labels), "Better", "n"],
            rows,
        )
        + (_PAIRED_NOTE if found.comparison is not None else "")
        + "</section>\n"
    )


def _paired(differences: Sequence[PairedDifference]) -> str:
    rows = [
        [
            f'<th scope="row">{esc(one.score)}</th>',
            word_cell(esc(f"{one.model} − {one.baseline}")),
            number_cell(number(one.difference, signed=True)),
            number_cell(_ends(one.low, one.high)),
            number_cell(MISSING if one.p_value is None else number(one.p_value, 3)),
            word_cell(esc(one.test)),
            number_cell(count(one.n)),
        ]
        for one in differences
    ]
    heads = ["Score", "Models", "Difference", "95 % interval", "p", "Test", "n"]
    if not rows:
        return ""
    shown = table("Model minus baseline, item by item.", heads, rows)
    return f"<details open><summary>Paired differences</summary>{shown}</details>\n"


def _protocol(
    variant: str,
    results: Sequence[EvalResult],
    differences: Sequence[PairedDifference],
    key: str,
) -> str:
    first = results[0]
    choices = "".join(f"<dt>{esc(k)}</dt><dd>{esc(v)}</dd>" for k, v in first.choices.items())
    parameters = json.dumps(first.parameters, indent=2, ensure_ascii=False)
    rows = [
        [
            f'<th scope="row">{esc(r.model["label"])}</th>',
            word_cell(esc(" ".join(filter(None, [m.name, _where(m)])))),
            number_cell(number(m.value)),
            number_cell(_ends(m.low, m.high)),
            word_cell(esc(m.unit)),
            number_cell(count(m.n)),
        ]
        for r in results
        for m in r.metrics
    ]
    every = table("Every metric.", ["Model", "Metric", "Value", "95 % interval", "Unit", "n"], rows)
    return (
        f'<section id="{key}">\n<h2>{esc(variant)}</h2>\n'
        f"<p>{esc(first.protocol)}, version {first.version}. Source: {esc(first.source)}.</p>\n"
        f"{protocol_charts(results, f'{key}-chart-')}{_paired(differences)}"
        f"<details><summary>Every metric</summary>{every}</details>\n"
        f"<details><summary>What the source leaves open, and what was done</summary>"
        f"<dl>{choices}</dl></details>\n"
        f"<details><summary>Parameters</summary><pre>{esc(parameters)}</pre></details>\n"
        "</section>\n"
    )


def _provenance(found: EvaluationFolder) -> str:
    models: dict[str, dict[str, Any]] = {
        str(r.model["label"]): r.model for results in found.results.values() for r in results
    }
    rows = [
        [
            f'<th scope="row">{esc(label)}</th>',
            word_cell(esc(model.get("attention_type") or model.get("type"))),
            number_cell(count(model.get("parameters"))),
            word_cell(esc(model.get("weights"))),
            word_cell(esc(model.get("vocabulary"))),
            word_cell(esc(f"{model.get('dtype')} on {model.get('device')}")),
            word_cell(esc(model.get("path"))),
        ]
        for label, model in models.items()
    ]
    heads = ["Model", "Attention", "Parameters", "Weights", "Vocabulary", "Ran in", "Path"]
    runs = [
        [
            f'<th scope="row">{esc(record.name)}</th>',
            word_cell(esc(record.created)),
            word_cell(esc((record.commit or "not recorded")[:12] + (" +" if record.dirty else ""))),
            run_cell([", ".join(f"{k} {v}" for k, v in record.versions.items())]),
        ]
        for record in found.records
    ]
    return (
        '<section id="provenance">\n<h2>Provenance</h2>\n'
        + table("Models; weights and vocabulary as hashes.", heads, rows)
        + "<details><summary>Runs</summary>"
        + table(
            "A + after a commit: changed files.", ["Run", "Created", "Commit", "Versions"], runs
        )
        + "</details></section>\n"
    )


def _find(result: EvalResult | None, name: str, where: str) -> Metric | None:
    metrics = result.headline() if result else []
    return next((m for m in metrics if (m.name, _where(m)) == (name, where)), None)


def _where(metric: Metric) -> str:
    return ", ".join(f"{key} {value}" for key, value in metric.where.items())


def _direction(metric: Metric) -> str:
    return {True: "higher", False: "lower", None: MISSING}[metric.higher_is_better]


def _ends(low: float | None, high: float | None) -> str:
    return MISSING if low is None or high is None else f"{number(low)} to {number(high)}"
