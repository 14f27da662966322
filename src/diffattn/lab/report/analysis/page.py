"""What the page of an analysis shows, as plain values."""

from pathlib import Path
from typing import Any

from diffattn.lab.records.analysis import ANALYSIS_FILE, AnalysisResult
from diffattn.lab.report.analysis.charts import (
    distance_charts,
    head_maps,
    lambda_charts,
    layer_charts,
    outlier_charts,
)
from diffattn.lab.report.analysis.tables import (
    heads_table,
    label_of,
    largest_table,
    notes,
    outlier_table,
    provenance_tables,
    summary_table,
)
from diffattn.lab.report.page.render import write_page
from diffattn.lab.report.page.wording import listing, plural

_DEFINITIONS = {
    "A1, A2, A, |A|": "The softmax maps of a head, A = A1 − λ A2 (A1 alone for softmax attention), "
    "and its absolute values. The first query of a text sees itself alone and is left out.",
    "Sink share": "Share of |A| on the first token. Rows of A sum to 1 − λ, so that plain masses "
    "of models differ by λ alone.",
    "Sink, self, previous": "Mean mass of A on the first key, on the query's own key and on the "
    "one before, neither of them the first. Absolute, map 1 and map 2: the same of |A|, A1 and A2.",
    "Entropy": "Of |A| divided by its sum, over the logarithm of the number of keys seen: 1 is a "
    "uniform map, 0 one key.",
    "Negative": "Mean sum of the negative entries of A, without sign.",
    "Cancelled": "Mean sum of min(A1, λ A2): the share of A1 that the second map takes away. By "
    "uniform A2: the same if A2 gave every key the same, which takes no learning.",
    "A1 ~ A2": "Correlation of both maps around their row means. Plain cosine, in the record, is "
    "high for any two causal maps.",
    "Heads' maps, heads' CKA": "Redundancy: mean over pairs of heads of the correlation of their "
    "maps, and of the linear CKA (unbiased) of what attention gives them.",
    "Context RMS": "Root mean square of what attention gives a head, before head norm and "
    "projection.",
    "Massive": "Activations above 100 and above 1,000 medians.",
    "Kurtosis": "3 for a normal distribution.",
}


def is_analysis_folder(folder: Path) -> bool:
    """Whether ``diffattn analyze`` wrote this folder."""
    return (Path(folder) / ANALYSIS_FILE).is_file()


def build_analysis_report(folder: Path, out: Path | None = None) -> Path:
    """Write one HTML file that shows an analysis and needs no network.

    Args:
        folder: Written by ``diffattn analyze``.
        out: File to write. Default ``folder / "report.html"``.

    Returns:
        The file written.

    Raises:
        CheckpointError: The record is damaged, or of another kind or schema version.
        OSError: The file cannot be written; an existing one is left as it was.
    """
    folder = Path(folder)
    page = analysis_page(AnalysisResult.read(folder))
    return write_page(
        folder / "report.html" if out is None else Path(out),
        "analysis.html.j2",
        title=page["title"],
        chapters=page["chapters"],
        analysis=page,
    )


def analysis_page(result: AnalysisResult) -> dict[str, Any]:
    """Title, ``chapters`` and sections of the page; sections without content are ``None``."""
    run = [analysis for analysis in result.models if analysis.attention]
    lambdas = lambda_charts(result)
    chapters = {"overview": "Overview"} if run else {}
    chapters |= {"attention": "Attention", "outliers": "Outliers"} if run else {}
    chapters |= {"lambda": "λ"} if lambdas else {}
    chapters |= {"definitions": "Definitions", "provenance": "Provenance"}
    lead = f"{plural(len(result.models), 'model')}"
    if run:
        tokens = max(sum(a.tokens["lengths"]) for a in run if a.tokens is not None)
        lead += f" on {tokens:,} tokens of {result.text['source']}"
    lead += (
        ". This is what was seen of these weights on this text; it says nothing of other seeds, "
        "texts or sizes."
    )
    return {
        "title": f"Looking inside {listing(label_of(analysis) for analysis in result.models)}",
        "chapters": chapters,
        "lead": lead,
        "notes": notes(result),
        "summary": summary_table(result) if run else None,
        "layers": layer_charts(result),
        "distances": distance_charts(result),
        "heads": [
            {"label": label_of(a), "charts": head_maps(a, i), "table": heads_table(a)}
            for i, a in enumerate(run)
        ],
        "outliers": outlier_table(result) if run else None,
        "outlier_charts": outlier_charts(result),
        "largest": [{"label": label_of(a), "table": largest_table(a)} for a in run],
        "lambdas": lambdas,
        "definitions": _DEFINITIONS,
        "provenance": provenance_tables(result),
    }
