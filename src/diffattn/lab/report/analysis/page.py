"""The page of an analysis."""

from pathlib import Path

from diffattn.lab.records.analysis import ANALYSIS_FILE, AnalysisResult
from diffattn.lab.report.analysis import charts, tables
from diffattn.lab.report.page.elements import (
    Bullets,
    Document,
    Element,
    Fold,
    Pair,
    Part,
    Section,
    Terms,
    Text,
)
from diffattn.lab.report.page.render import write_document
from diffattn.lab.report.page.wording import listing, plural

_DEFINITIONS = {
    "A1, A2, A, |A|": "The softmax maps of a head, A = A1 − λ A2 (A1 alone for softmax attention), "
    "and its absolute values. The first query of a text sees itself alone and is left out.",
    "Sink share": "Share of |A| on the first token. It is a share because rows of A sum to 1 − λ, "
    "which differs between models.",
    "Sink, self, previous": "Mean weight of A on the first key, on the query itself, and on "
    "the position before it. The last two leave out the first key. The columns absolute, map 1 and "
    "map 2 give the same for |A|, A1 and A2.",
    "Entropy": "Of |A| divided by its sum, over the logarithm of the number of keys seen: 1 is a "
    "uniform map, 0 is one key.",
    "Negative": "Mean sum of the negative entries of A, without sign.",
    "Cancelled": "Mean sum of min(A1, λ A2): the share of A1 that the second map takes away. The "
    "column by uniform A2 puts in its place a map with equal weights, which needs no learning.",
    "A1 ~ A2": "Correlation of the two maps, each row minus its mean. The record also has their "
    "cosine, which is high for any two causal maps.",
    "Heads' maps, heads' CKA": "Redundancy: mean over pairs of heads of the correlation of their "
    "maps, and of the linear CKA (unbiased) of the outputs of attention.",
    "Context RMS": "Root mean square of the output of attention in a head, before head norm and "
    "projection.",
    "Massive": "Activations above 100 and above 1,000 times the median.",
    "Kurtosis": "3 for a normal distribution.",
}


def is_analysis_folder(folder: Path) -> bool:
    """Whether ``diffattn analyze`` wrote this folder."""
    return (folder / ANALYSIS_FILE).is_file()


def build_analysis_report(folder: Path, out: Path | None = None) -> Path:
    """Write one HTML file that shows an analysis and needs no network."""
    result = AnalysisResult.read(folder)
    models = [analysis for analysis in result.models if analysis.attention]
    lead = plural(len(result.models), "model")
    sections = []
    if models:
        tokens = max(sum(a.tokens["lengths"]) for a in models if a.tokens is not None)
        lead += f" on {tokens:,} tokens of {result.text['source']}"
        by_head: list[Element] = []
        outliers: list[Element] = [
            tables.outlier_table(result),
            Pair(charts.outlier_charts(result)),
        ]
        for index, analysis in enumerate(models):
            label, every = tables.label_of(analysis), tables.heads_table(analysis)
            largest = tables.largest_table(analysis)
            by_head += [
                Pair(charts.head_maps(analysis, index)),
                Fold(f"Every head of {label}", [every]),
            ]
            outliers.append(Fold(f"The largest activations of {label}", [largest]))
        attention: list[Element] = [
            Pair(charts.layer_charts(result)),
            Part("By distance", [Pair(charts.distance_charts(result))]),
            Part("By head", by_head),
        ]
        sections += [
            Section("overview", "Overview", [tables.summary_table(result)]),
            Section("attention", "Attention", attention),
            Section("outliers", "Outliers", outliers),
        ]
    if lambdas := charts.lambda_charts(result):
        sections.append(Section("lambda", "λ", [Pair(lambdas)]))
    lead += (
        ". These are observations of these weights on this text. They say nothing of other seeds, "
        "texts or sizes."
    )
    document = Document(
        title=f"Looking inside {listing(map(tables.label_of, result.models))}",
        lead=[Text(lead, "lead"), Bullets(tables.notes(result), "Read this first", "gap")],
        sections=[
            *sections,
            Section("definitions", "Definitions", [Terms(_DEFINITIONS)]),
            Section("provenance", "Provenance", tables.provenance_tables(result)),
        ],
    )
    return write_document(folder / "report.html" if out is None else out, document)
