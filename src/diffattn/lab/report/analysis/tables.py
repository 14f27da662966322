"""Tables of an analysis: one row per model, on the page and on the screen."""

from collections.abc import Callable, Sequence
from statistics import fmean
from typing import Any

from diffattn.lab.records.analysis import AnalysisResult, LargeValue, ModelAnalysis, OutlierRow
from diffattn.lab.report.page.tables import Cell, Table, head_cell, number_cell, table, word_cell
from diffattn.lab.report.page.wording import (
    MISSING,
    WHITE_SPACE,
    count,
    listing,
    number,
    plural,
    span,
)

LOGITS, HIDDEN = "attention logits", "hidden states"
WITH, WITHOUT = "all positions", "without position 0"
_RANKS = ("1", "2", "3", "10", "100")


def head_mean(analysis: ModelAnalysis, name: str) -> float | None:
    """Mean over layers and heads; ``None`` where nothing is known."""
    values = [
        x for layer in analysis.attention for x in layer["heads"].get(name, ()) if x is not None
    ]
    return fmean(values) if values else None


def layer_means(analysis: ModelAnalysis, name: str) -> list[tuple[float, float]]:
    """Layers and means over their heads, where known."""
    means = []
    for number_, layer in enumerate(analysis.attention):
        values = [x for x in layer["heads"].get(name, ()) if x is not None]
        if values:
            means.append((float(number_), fmean(values)))
    return means


def layer_values(
    analysis: ModelAnalysis, read: Callable[[Any], float | None]
) -> list[tuple[float, float]]:
    """Layers and one number of each, where known."""
    values = [(float(i), read(layer)) for i, layer in enumerate(analysis.attention)]
    return [(i, value) for i, value in values if value is not None]


def acting(layer: Any, name: str) -> float | None:
    """``map_cosine`` or ``map_correlation`` of the map that acts."""
    of: dict[str, float | None] = layer[name]
    return of.get("signed", of.get("map_1"))


def label_of(analysis: ModelAnalysis) -> str:
    """Of the model."""
    return str(analysis.model.get("label"))


_COLUMNS: tuple[tuple[str, Callable[[ModelAnalysis], float | None]], ...] = (
    ("sink share", lambda a: head_mean(a, "sink_share")),
    ("entropy", lambda a: head_mean(a, "entropy")),
    ("negative", lambda a: head_mean(a, "negative_mass")),
    ("cancelled", lambda a: head_mean(a, "cancelled")),
    ("by uniform A2", lambda a: head_mean(a, "cancelled_by_uniform")),
    ("A1 ~ A2", lambda a: head_mean(a, "correlation")),
    ("heads' maps", lambda a: _mean(layer_values(a, lambda x: acting(x, "map_correlation")))),
    ("heads' CKA", lambda a: _mean(layer_values(a, lambda x: x["cka"]))),
    ("context RMS", lambda a: head_mean(a, "context_rms")),
    ("largest logit", lambda a: _largest(a, LOGITS)),
    ("largest hidden", lambda a: _largest(a, HIDDEN)),
)


def summary_rows(result: AnalysisResult) -> list[dict[str, str]]:
    """One row per model with weights: means over layers and heads."""
    return [
        {"model": label_of(analysis)}
        | {name: _short(read(analysis)) for name, read in _COLUMNS}
        | {"λ": _lambda_range(analysis)}
        for analysis in result.models
        if analysis.attention
    ]


def lambda_rows(result: AnalysisResult) -> list[dict[str, str]]:
    """One row per run with a log of λ: where it began and where it ended, layer by layer."""
    rows = []
    for analysis in result.models:
        log = analysis.lambda_log
        if log is not None:
            rows.append(
                {
                    "model": label_of(analysis),
                    "λ init": _numbers(log["lambda_init"] or []) or MISSING,
                    f"λ at step {log['steps'][0]:,.0f}": _numbers(log["values"][0]),
                    f"λ at step {log['steps'][-1]:,.0f}": _numbers(log["values"][-1]),
                    "leaves [0, 1]": plural(len(log["flags"]), "flag") if log["flags"] else "no",
                }
            )
    return rows


def summary_table(result: AnalysisResult) -> Table:
    """The rows above, and the uniform map beside them."""
    headers = ["Model", *(name for name, _ in _COLUMNS), "λ"]
    rows = [
        [head_cell(row["model"]), *(number_cell(text) for text in list(row.values())[1:])]
        for row in summary_rows(result)
    ]
    with_uniform = next((a.uniform for a in result.models if a.uniform), None)
    if with_uniform is not None:
        known = [_short(with_uniform["first"]), _short(1.0)]  # of entropy
        cells = [*known, *[MISSING] * (len(headers) - 1 - len(known))]
        rows.append([head_cell("a uniform map"), *map(number_cell, cells)])
    return table("Means over layers and heads.", headers, rows)


def heads_table(analysis: ModelAnalysis) -> Table:
    """Every head."""
    names = list(dict.fromkeys(name for layer in analysis.attention for name in layer["heads"]))
    rows = [
        [
            head_cell(f"{number_} / {head}"),
            *(number_cell(_short(layer["heads"][name][head])) for name in names),
        ]
        for number_, layer in enumerate(analysis.attention)
        for head in range(len(layer["heads"]["context_rms"]))
    ]
    return table("Layer / head.", ["Head", *(n.replace("_", " ") for n in names)], rows)


def outlier_table(result: AnalysisResult) -> Table:
    """Table 5's columns for every model and kind of activation."""
    rows = []
    for analysis in result.models:
        kinds = analysis.outliers["table"] if analysis.outliers else {}
        for kind, of_kind in kinds.items():
            for which, row in of_kind.items():
                top = row["top"]
                rows.append(
                    [
                        head_cell(label_of(analysis)),
                        word_cell(kind),
                        word_cell(which),
                        *(number_cell(_short(top.get(rank))) for rank in _RANKS),
                        number_cell(_short(row["median"])),
                        number_cell(_short(row["kurtosis"])),
                        number_cell(count(row.get("massive"))),
                        number_cell(count(row["count"])),
                    ]
                )
    tops = [f"top-{rank}" for rank in _RANKS]
    headers = ["Model", "Activation", "Over", *tops, "Median", "Kurtosis", "Massive", "n"]
    return table("Absolute values.", headers, rows)


def largest_table(analysis: ModelAnalysis) -> Table:
    """Where the largest logits and hidden states are."""
    kinds = analysis.outliers["table"] if analysis.outliers else {}
    rows = [
        [
            head_cell(kind),
            number_cell(_short(entry["value"])),
            word_cell(_place(entry)),
            Cell(text=_tokens(entry), kind="long"),
        ]
        for kind in (LOGITS, HIDDEN)
        for row in [kinds.get(kind, {}).get(WITH)]
        if row is not None
        for entry in row.get("largest", [])
    ]
    headers = ["Activation", "Size", "Place", "Token"]
    return table("The ten largest, position 0 included.", headers, rows)


def provenance_tables(result: AnalysisResult) -> dict[str, Table]:
    """Models, and the analysis itself."""
    models = [
        [
            head_cell(label_of(analysis)),
            word_cell(str(m.get("attention_type") or m.get("type") or MISSING)),
            number_cell(count(m.get("parameters"))),
            word_cell(str(m.get("weights") or "none here")),
            word_cell(
                f"{m.get('dtype')} on {m.get('device')}" if analysis.attention else "not run"
            ),
            word_cell(_windows(analysis)),
            word_cell(analysis.tokens["sha256"][:16] if analysis.tokens else MISSING),
            word_cell(str(m.get("path"))),
        ]
        for analysis in result.models
        for m in [analysis.model]
    ]
    headers = ["Model", "Attention", "Parameters", "Weights", "Ran in", "Windows", "Tokens", "Path"]
    documents = result.text["documents"]
    shown = documents[:5]
    more = [f"{len(documents) - 5} more"] if len(documents) > 5 else []
    facts = [
        ("Created", result.created),
        ("Text", result.text["source"]),
        ("Documents", listing([*shown, *more]) or MISSING),
        ("Text hash", result.text["sha256"]),
        ("Settings", _pairs(dict(result.settings))),
        ("Commit", (result.commit or "not recorded") + (" with changes" if result.dirty else "")),
        ("Versions", _pairs(result.versions)),
        ("Hardware", _pairs(result.hardware)),
    ]
    return {
        "models": table(
            "Weights and tokens as hashes: equal ones are equal inputs.", headers, models
        ),
        "facts": table(
            "The analysis.", ["", ""], [[head_cell(name), word_cell(text)] for name, text in facts]
        ),
    }


def notes(result: AnalysisResult) -> list[str]:
    """What a reader must know before comparing columns."""
    sentences = [note for analysis in result.models for note in analysis.notes]
    hashes = {a.tokens["sha256"] for a in result.models if a.tokens}
    if len(hashes) > 1:
        sentences.append(
            "The models did not read the same tokens: their tokenizers, their BOS or their windows "
            "differ, so positions and distances are not the same text."
        )
    for analysis in result.models:
        for of in (analysis.lambdas, analysis.lambda_log):
            sentences += [f"{label_of(analysis)}: {flag}" for flag in (of["flags"] if of else ())]
    return sentences


def _largest(analysis: ModelAnalysis, kind: str) -> float | None:
    of = analysis.outliers["table"].get(kind) if analysis.outliers else None
    row: OutlierRow | None = of.get(WITH) if of else None
    return row["top"].get("1") if row else None


def _mean(pairs: Sequence[tuple[float, float]]) -> float | None:
    return fmean(value for _, value in pairs) if pairs else None


def _lambda_range(analysis: ModelAnalysis) -> str:
    layers = analysis.lambdas["layers"] if analysis.lambdas else []
    if not layers:
        return MISSING
    low, high = min(min(x["min"]) for x in layers), max(max(x["max"]) for x in layers)
    return span(low, high, 2)


def _numbers(values: Sequence[float]) -> str:
    return ", ".join(number(value, 3) for value in values)


def _short(value: Any) -> str:
    """Three digits after the point, or one from 100 on."""
    large = isinstance(value, int | float) and abs(value) >= 100
    return number(value, 1 if large else 3)


def _place(entry: LargeValue) -> str:
    names = ("layer", "map", "head", "channel", "text", "query", "key", "position")
    place = dict(entry)
    return ", ".join(f"{name} {place[name]}" for name in names if name in place)


def _tokens(entry: LargeValue) -> str:
    if "token" in entry:
        return _visible(entry["token"])
    return f"{_visible(entry.get('query_token'))} to {_visible(entry.get('key_token'))}"


def _visible(text: Any) -> str:
    return f"“{str(text).translate(WHITE_SPACE)}”"


def _windows(analysis: ModelAnalysis) -> str:
    if analysis.tokens is None:
        return MISSING
    lengths = analysis.tokens["lengths"]
    return f"{len(lengths):,} of up to {max(lengths):,}, {sum(lengths):,} tokens"


def _pairs(values: dict[str, Any]) -> str:
    return ", ".join(f"{name} {value}" for name, value in values.items() if value is not None)
