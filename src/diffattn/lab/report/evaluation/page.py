"""The page of an evaluation folder."""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from diffattn.errors import CheckpointError, short
from diffattn.lab.records.evaluations import (
    Comparison,
    EvalResult,
    PairedDifference,
    evaluation_marker,
)
from diffattn.lab.records.run import RunRecord
from diffattn.lab.records.stored_runs import results_folder
from diffattn.lab.report.evaluation.charts import charts_of
from diffattn.lab.report.evaluation.tables import (
    difference_table,
    difference_tables,
    metric_name,
    metric_rows,
)
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
    shown,
)
from diffattn.lab.report.page.tables import Table, record_table, table
from diffattn.lab.report.page.wording import (
    MISSING,
    count,
    label_of,
    listing,
    number,
    pairs,
    plural,
    span,
)

_ONE_SEED = (
    "One model of each kind was compared. The intervals are over items: they say whether these "
    "very weights differ on other items of the same sort. Another training run of the same kind "
    "can differ by as much or more, so nothing here is a finding about a kind of attention. "
    "Models of several seeds, called NAME-seed0, NAME-seed1, …, are compared over seeds."
)
_SEVERAL_SEEDS = (
    "Rows “over seeds” take the difference of each seed as one value: they say what another "
    "training run would bring. The others are over items, of one pair of weights each."
)
_MEANINGS = {
    "higher, lower": "The adjusted p-value is at most 0.05.",
    "inconclusive": "It is above 0.05: the data fit a difference and none.",
    "uninformative": "No model is above guessing, or all have everything right.",
}


@dataclass(frozen=True, kw_only=True, slots=True)
class EvaluationFolder:
    """An evaluation folder in memory."""

    results: dict[str, list[EvalResult]]
    """Variant -> results, one per model that has finished it."""
    records: list[RunRecord]
    comparison: Comparison | None
    gaps: list[str]


def read_evaluation(folder: Path) -> EvaluationFolder:
    """Read an evaluation folder. ``gaps`` names what is missing, damaged or of another version."""
    marker, stored = evaluation_marker(folder), results_folder(folder)
    results: dict[str, list[EvalResult]] = {}
    records, gaps = [], []
    damaged: list[CheckpointError] = []
    for variant in marker["variants"]:
        for label in marker["models"]:
            part = stored / label / variant
            if not (part / "result.json").exists():
                gaps.append(f"{label} has no result of {variant}.")
                continue
            try:
                result, record = EvalResult.read(part), RunRecord.read(part)
                names = (result.model.get("label"), result.variant)
                if names != (label, variant):
                    raise CheckpointError(
                        f"{part / 'result.json'}: must be of {label} and {variant}, got "
                        f"{' and '.join(map(short, names))}."
                    )
            except CheckpointError as error:  # the other records can still be shown
                damaged.append(error)
                gaps.append(f"{label} is left out of {variant}: {error}")
                continue
            first = results.setdefault(variant, [result])[0]
            if first is not result:
                if unlike := result.unlike(first):
                    gaps.append(f"{label} is left out of {variant}: {unlike}.")
                    continue
                results[variant].append(result)
            records.append(record)
            if result.num_failed:
                counts = f"{result.num_failed} of {result.num_items}"
                gaps.append(f"{label}, {variant}: {counts} items failed.")
    if damaged and not records:
        raise damaged[0]
    comparison = None
    if (folder / "comparison.json").exists():
        try:
            comparison = Comparison.read(folder)
        except CheckpointError as error:
            gaps.append(f"The comparison is left out: {error}")
    absent = tuple(gaps)
    if comparison:  # missing results are named above
        gaps += [sentence for sentence in comparison.skipped if not sentence.endswith(absent)]
        gaps += comparison.notes
    elif len(marker["models"]) > 1 and not (folder / "comparison.json").exists():
        gaps.append("The models were not compared: comparison.json is missing.")
    return EvaluationFolder(results=results, records=records, comparison=comparison, gaps=gaps)


def evaluation_document(folder: EvaluationFolder, claims: Table | None) -> Document:
    """Assemble the page."""
    results = [result for of_variant in folder.results.values() for result in of_variant]
    labels = list(dict.fromkeys(map(label_of, results)))
    compared = folder.comparison.differences if folder.comparison else ()
    readable = {(result.variant, label_of(result)) for result in results}
    differences = [
        pair
        for pair in compared
        if pair.over == "seeds"
        or {(pair.variant, pair.model), (pair.variant, pair.baseline)} <= readable
    ]
    sections: list[Section] = []
    if verdicts := _verdicts(folder, differences):
        sections.append(Section("verdicts", "What it shows", verdicts))
    if claims is not None:
        sections.append(Section("claims", "The papers' claims", [claims]))
    note = (
        "The section of each protocol shows its charts and the differences between the models, "
        "over the items that both answered. Its p-values are two-sided and not adjusted for making "
        "several comparisons. Of twenty, one below 0.05 is expected where nothing differs."
    )
    headline = record_table(
        "The numbers that the papers' tables would print.", metric_rows(results)
    )
    overview = shown(headline, Text(note if folder.comparison else ""))
    sections.append(Section("overview", "Results", overview))
    for index, (variant, entries) in enumerate(folder.results.items()):
        pairs_of_variant = [pair for pair in differences if pair.variant == variant]
        sections.append(_protocol_section(f"protocol-{index}", entries, pairs_of_variant))
    sections.append(Section("provenance", "Provenance", _provenance(folder, results)))
    names = listing(labels) if len(labels) <= 6 else plural(len(labels), "model")
    words = (
        f"{plural(len(labels), 'model')}, {plural(len(folder.results), 'protocol')}. "
        "Values have their intervals. Every answer stands in the items.jsonl beside each result; "
        "'diffattn compare FOLDER --answers FILE.html' makes a page of them."
    )
    missing = Bullets(folder.gaps, "What is missing or unequal", "gap")
    return Document(
        title=f"Evaluation of {names}", lead=[Text(words, "lead"), missing], sections=sections
    )


def _verdicts(folder: EvaluationFolder, differences: Sequence[PairedDifference]) -> list[Element]:
    known = [pair for pair in differences if pair.primary and pair.variant in folder.results]
    by_seed = {pair.variant for pair in known if pair.over == "seeds"}
    primary = [x for x in known if x.over == "seeds" or x.variant not in by_seed]
    if not primary:
        return []
    sentences, is_informative = [], False
    for pair in primary:
        is_informative |= pair.verdict in ("higher", "lower")
        ends, over = span(pair.low, pair.high, 3), ", over seeds" if pair.over == "seeds" else ""
        better = {True: "more is better", False: "less is better", None: ""}[pair.higher_is_better]
        notes = ", ".join(filter(None, (f"95 % {ends}" if ends != MISSING else "", better)))
        sentences.append(
            f"{pair.variant}{over}: {pair.score} of {pair.model} minus {pair.baseline} "
            f"{number(pair.difference, 3, signed=True)} ({notes}): {pair.verdict}."
        )
    guesses = [f"{pair.variant}: the best guess is {pair.guess}." for pair in primary if pair.guess]
    terms = _MEANINGS | ({"guessing": " ".join(dict.fromkeys(guesses))} if guesses else {})
    columns = ["Protocol", "Score", "Models", "Verdict", "Difference", "95 % interval", "p, Holm"]
    columns += ["n", "Model / baseline", "Chance / best guess"]
    caption = (
        "One declared score per protocol. p-values are adjusted by Holm for all rows over the same "
        "unit, items or seeds. At 0.05, one family of rows in twenty has any wrong verdict."
    )
    return [
        Bullets(sentences, role="verdict" if is_informative else "verdict uninformative"),
        Text(_SEVERAL_SEEDS if by_seed else _ONE_SEED),
        difference_table(caption, columns, primary),
        Fold("What the verdicts mean", [Terms(terms)]),
    ]


def _protocol_section(
    key: str, results: Sequence[EvalResult], differences: Sequence[PairedDifference]
) -> Section:
    first, prefix = results[0], f"{key}-chart-"
    metrics = [
        {
            "Model": label_of(result),
            "Metric": metric_name(metric),
            "Value": number(metric.value),
            "95 % interval": span(metric.low, metric.high),
            "Unit": metric.unit,
            "n": count(metric.n),
            "Interval by": metric.method,
        }
        for result in results
        for metric in result.metrics
    ]
    content: list[Element] = [
        Text(f"{first.protocol}, version {first.version}. Source: {first.source}."),
        *map(Pair, charts_of(results, prefix)),
        *difference_tables(differences),
        Fold("Every metric", [record_table("Every metric.", metrics)]),
        Fold("What the source leaves open, and our choices", [Terms(first.choices)]),
        Fold("Parameters", [Code(json.dumps(first.parameters, indent=2, ensure_ascii=False))]),
    ]
    return Section(key, first.variant, content)


def _provenance(folder: EvaluationFolder, results: Sequence[EvalResult]) -> list[Element]:
    models = [
        {
            "Model": label,
            "Attention": str(model.get("attention_type") or model.get("type")),
            "Parameters": count(model.get("parameters")),
            "Weights": str(model.get("weights")),
            "Vocabulary": str(model.get("vocabulary")),
            "Ran in": f"{model.get('dtype')} on {model.get('device')}",
            "Path": str(model.get("path")),
        }
        for label, model in {label_of(result): result.model for result in results}.items()
    ]
    runs = [
        [
            record.name,
            record.created,
            (record.commit or "not recorded")[:12] + (" +" if record.dirty else ""),
            pairs(record.versions),
        ]
        for record in folder.records
    ]
    headers = ["Run", "Created", "Commit", "Versions"]
    return [
        record_table("Models; weights and vocabulary as hashes.", models),
        Fold("Runs", [table("A + after a commit: changed files.", headers, runs)]),
    ]
