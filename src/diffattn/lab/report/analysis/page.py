"""The page of an analysis: by layer, by distance, by head, outliers and λ."""

from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise
from operator import itemgetter
from pathlib import Path
from statistics import fmean
from typing import Any

from diffattn.lab.records.analysis import ANALYSIS_FILE, AnalysisResult, ModelAnalysis
from diffattn.lab.report.analysis import tables
from diffattn.lab.report.analysis.tables import ALL_POSITIONS, HIDDEN, LOGITS, map_correlation
from diffattn.lab.report.page.charts import (
    Chart,
    interval_bars,
    lambda_over_training,
    layout,
    line,
    model_colors,
)
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
from diffattn.lab.report.page.wording import label_of, listing, plural

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
        attention_of = {label_of(x): x.attention for x in models}
        outliers_of = {label_of(x): x.outliers["layers"] if x.outliers else () for x in models}
        by_head: list[Element] = []
        outliers: list[Element] = [
            tables.outlier_table(result),
            Pair(_layer_charts(result, _OUTLIERS, outliers_of)),
        ]
        for analysis in models:
            label, largest = label_of(analysis), tables.largest_table(analysis)
            by_head.append(Fold(f"Every head of {label}", [tables.heads_table(analysis)]))
            outliers.append(Fold(f"The largest activations of {label}", [largest]))
        attention: list[Element] = [
            Pair(_layer_charts(result, _ATTENTION, attention_of)),
            Part("By distance", [Pair(_distance_charts(result))]),
            Part("By head", by_head),
        ]
        sections += [
            Section("overview", "Overview", [tables.summary_table(result)]),
            Section("attention", "Attention", attention),
            Section("outliers", "Outliers", outliers),
        ]
    if lambdas := _lambda_charts(result):
        sections.append(Section("lambda", "λ", [Pair(lambdas)]))
    lead += (
        ". These are observations of these weights on this text. They say nothing of other seeds, "
        "texts or sizes."
    )
    document = Document(
        title=f"Looking inside {listing(map(label_of, result.models))}",
        lead=[Text(lead, "lead"), Bullets(tables.notes(result), "Read this first", "gap")],
        sections=[
            *sections,
            Section("definitions", "Definitions", [Terms(_DEFINITIONS)]),
            Section("provenance", "Provenance", tables.provenance_tables(result)),
        ],
    )
    return write_document(folder / "report.html" if out is None else out, document)


_UNIFORM = "uniform map"
_AROUND = "around their row means, mean over heads"
_PAIRS = "signed maps, mean over pairs of heads"

_OfLayer = Callable[[Any], float | None]


def _mean(name: str) -> _OfLayer:
    """Mean of one quantity over the heads that have it; ``None`` if no head has it."""

    def read(layer: Any) -> float | None:
        known = [x for x in layer["heads"].get(name, ()) if x is not None]
        return fmean(known) if known else None

    return read


def _largest(kind: str) -> _OfLayer:
    return lambda layer: layer.get(kind, {}).get(ALL_POSITIONS, {}).get("largest")


_Quantity = tuple[str, str, str, _OfLayer]
"""Key, title, explanation, and a function that reads the value from a layer's record."""
_ATTENTION: tuple[_Quantity, ...] = (
    ("sink", "sink share", "of |A| on the first token, mean over heads", _mean("sink_share")),
    ("entropy", "entropy of |A| (1 is uniform)", "mean over heads", _mean("entropy")),
    ("negative", "negative mass", "of the signed map, mean over heads", _mean("negative_mass")),
    ("cancelled", "share of A1 cancelled", "by λA2, mean over heads", _mean("cancelled")),
    ("correlation", "correlation of A1 and A2", _AROUND, _mean("correlation")),
    ("context", "Context RMS", "before head norm, mean over heads", _mean("context_rms")),
    ("maps", "correlation of heads' maps", _PAIRS, map_correlation),
    ("cka", "CKA of heads' features", "unbiased, mean over pairs of heads", itemgetter("cka")),
)
_OUTLIERS: tuple[_Quantity, ...] = (
    ("logit", f"largest of {LOGITS}", "all positions", _largest(LOGITS)),
    ("hidden", f"largest of {HIDDEN}", "all positions", _largest(HIDDEN)),
)


def _colors(result: AnalysisResult) -> dict[str, str]:
    return model_colors({label_of(a): str(a.model.get("attention_type")) for a in result.models})


def _layer_charts(
    result: AnalysisResult, quantities: Sequence[_Quantity], layers: Mapping[str, Sequence[Any]]
) -> list[Chart]:
    """Draw each quantity over the layers, one line per model that has it. ``layers``: by model."""
    colors, charts = _colors(result), []
    for key, title, words, read in quantities:
        traces = []
        for label, records in layers.items():
            values = [(float(i), read(layer)) for i, layer in enumerate(records)]
            if curve := [(i, value) for i, value in values if value is not None]:
                traces.append(line(curve, label, color=colors[label], where="layer %{x}"))
        if traces:
            charts.append(
                Chart(
                    element_id=f"layer-{key}",
                    traces=traces,
                    look=layout("layer", title, xaxis={"dtick": 1}),
                    caption=f"{title}: {words}.",
                )
            )
    return charts


def _distance_charts(result: AnalysisResult) -> list[Chart]:
    """Draw the mass of attention by distance, and the share that the second map cancels."""
    begins = result.settings["distances"]
    ranges = [str(a) if a == b - 1 else f"{a}–{b - 1}" for a, b in pairwise(begins)]
    names = ["first", *ranges, f"{begins[-1]}+"]
    masses = {label_of(a): _by_distance(a, ("absolute", "map_1")) for a in result.models}
    shares = {label_of(a): _by_distance(a, ("cancelled_share",)) for a in result.models}
    uniform = next((a.uniform for a in result.models if a.uniform), None)
    if uniform is not None:
        masses[_UNIFORM] = [uniform["first"], *uniform["by_distance"]]
        # Ranges beyond the longest window hold nothing.
        last = max((i for i, mass in enumerate(masses[_UNIFORM]) if mass), default=0)
        names = names[: last + 1]
    colors = _colors(result) | {_UNIFORM: "#777777"}
    charts = []
    for key, title, curves, caption in (
        ("mass", "mass of |A|", masses, "Mean over layers and heads. All distances sum to a row."),
        ("cancelled", "share of A1 cancelled", shares, "Of A1 there, by λA2, mean over layers."),
    ):
        traces = [
            line(list(zip(names, values, strict=False)), label, color=colors[label], where="%{x}")
            for label, values in curves.items()
            if values
        ]
        axis = {"type": "category"}  # else plotly takes "1" for a number and drops "first"
        look = layout("distance in tokens; first: the first token", title, xaxis=axis)
        if traces:
            words = f"{title} by distance. {caption}"
            charts.append(
                Chart(element_id=f"distance-{key}", traces=traces, look=look, caption=words)
            )
    return charts


def _lambda_charts(result: AnalysisResult) -> list[Chart]:
    """Draw λ on the text by layer with its range, and over training, beside λ_init."""
    colors = _colors(result)
    traces: list[dict[str, Any]] = []
    for analysis in result.models:
        if analysis.lambdas is None:
            continue
        label, layers = label_of(analysis), analysis.lambdas["layers"]
        color, where = colors[label], "layer %{x}"
        points = [(layer["lam"], min(layer["min"]), max(layer["max"])) for layer in layers]
        curve = [(place, point[0]) for place, point in enumerate(points)]
        trace = line(curve, label, "λ", color=color, where=where)
        traces.append(trace | {"error_y": interval_bars(points)})
        start = list(enumerate(analysis.lambdas["lambda_init"] or ()))
        if start:
            traces.append(line(start, label, "λ_init", color=color, dotted=True, where=where))
    caption = (
        "λ by layer: mean over tokens and heads, bars from the smallest to the largest. Dotted: "
        "λ_init."
    )
    by_layer = Chart(
        element_id="lambda-layers", traces=traces, look=layout("layer", "λ"), caption=caption
    )
    trajectories = [
        lambda_over_training(
            label_of(analysis),
            {log["run"]: list(zip(log["steps"], log["values"], strict=True))},
            log["lambda_init"] or (),
            color=colors[label_of(analysis)],
            quantity="λ",
            element_id=f"lambda-log-{index}",
        )
        for index, analysis in enumerate(result.models)
        if (log := analysis.lambda_log) is not None
    ]
    return [by_layer, *trajectories] if traces else trajectories


def _by_distance(analysis: ModelAnalysis, kinds: Sequence[str]) -> list[float | None]:
    """Mean over layers, for the first of ``kinds`` that is recorded; first token, then ranges."""
    for kind in kinds:
        layers = [
            layer["by_distance"][kind]
            for layer in analysis.attention
            if kind in layer["by_distance"]
        ]
        if layers:
            columns = zip(*([layer["first"], *layer["ranges"]] for layer in layers), strict=True)
            known = [[x for x in column if x is not None] for column in columns]
            return [fmean(column) if column else None for column in known]
    return []
