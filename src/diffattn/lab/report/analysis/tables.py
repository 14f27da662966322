"""Tables of an analysis: one row per model, on the page and on the screen."""

from collections.abc import Iterable, Sequence
from statistics import fmean
from typing import Any

from diffattn.lab.records.analysis import AnalysisResult, LargeValue, ModelAnalysis, OutlierRow
from diffattn.lab.report.page.tables import Cell, Table, record_table, table
from diffattn.lab.report.page.wording import (
    MISSING,
    WHITE_SPACE,
    count,
    label_of,
    listing,
    number,
    pairs,
    plural,
    span,
)

LOGITS, HIDDEN = "attention logits", "hidden states"
ALL_POSITIONS = "all positions"
_RANKS = ("1", "2", "3", "10", "100")
_PLACES = ("layer", "map", "head", "channel", "text", "query", "key", "position")


def map_correlation(layer: Any) -> float | None:
    """Correlation between heads of the signed map, or of softmax's single map."""
    values: dict[str, float | None] = layer["map_correlation"]
    return values.get("signed", values.get("map_1"))


_HEAD_MEANS = {
    "sink share": "sink_share",
    "entropy": "entropy",
    "negative": "negative_mass",
    "cancelled": "cancelled",
    "by uniform A2": "cancelled_by_uniform",
    "A1 ~ A2": "correlation",
}


def summary_rows(result: AnalysisResult) -> list[dict[str, str]]:
    """One row per model with weights: means over layers and heads, largest values, range of λ."""
    rows = []
    for analysis in result.models:
        layers = analysis.attention
        if not layers:
            continue
        lambdas = analysis.lambdas["layers"] if analysis.lambdas else []
        lows, highs = [min(x["min"]) for x in lambdas], [max(x["max"]) for x in lambdas]
        rows.append(
            {
                "model": label_of(analysis),
                **{title: _head_mean(layers, name) for title, name in _HEAD_MEANS.items()},
                "heads' maps": _mean(map_correlation(layer) for layer in layers),
                "heads' CKA": _mean(layer["cka"] for layer in layers),
                "context RMS": _head_mean(layers, "context_rms"),
                "largest logit": _largest(analysis, LOGITS),
                "largest hidden": _largest(analysis, HIDDEN),
                "λ": span(min(lows), max(highs), 2) if lambdas else MISSING,
            }
        )
    return rows


def _head_mean(layers: Sequence[Any], name: str) -> str:
    return _mean(x for layer in layers for x in layer["heads"].get(name, ()))


def _mean(values: Iterable[float | None]) -> str:
    known = [x for x in values if x is not None]
    return _short(fmean(known)) if known else MISSING


def _largest(analysis: ModelAnalysis, kind: str) -> str:
    rows = analysis.outliers["table"].get(kind) if analysis.outliers else None
    row: OutlierRow | None = rows.get(ALL_POSITIONS) if rows else None
    return _short(row["top"].get("1")) if row else MISSING


def lambda_rows(result: AnalysisResult) -> list[dict[str, str]]:
    """One row per run with a log of λ: where it began and where it ended, layer by layer."""
    return [
        {
            "model": label_of(analysis),
            "λ init": _numbers(log["lambda_init"] or []) or MISSING,
            f"λ at step {log['steps'][0]:,.0f}": _numbers(log["values"][0]),
            f"λ at step {log['steps'][-1]:,.0f}": _numbers(log["values"][-1]),
            "leaves [0, 1]": plural(len(log["flags"]), "flag") if log["flags"] else "no",
        }
        for analysis in result.models
        for log in [analysis.lambda_log]
        if log is not None
    ]


def summary_table(result: AnalysisResult) -> Table:
    """The summary of all models, with a row for a uniform map."""
    rows = summary_rows(result)
    uniform = next((a.uniform for a in result.models if a.uniform), None)
    if uniform is not None:
        known = {"model": "a uniform map", "sink share": _short(uniform["first"])}
        known["entropy"] = _short(1.0)
        rows.append(dict.fromkeys(rows[0], MISSING) | known)
    return record_table("Means over layers and heads.", rows)


def heads_table(analysis: ModelAnalysis) -> Table:
    """One row per head."""
    names = list(dict.fromkeys(name for layer in analysis.attention for name in layer["heads"]))
    rows = [
        [f"{index} / {head}", *(_short(layer["heads"][name][head]) for name in names)]
        for index, layer in enumerate(analysis.attention)
        for head in range(len(layer["heads"]["context_rms"]))
    ]
    return table("Every head.", ["Layer / head", *(name.replace("_", " ") for name in names)], rows)


def outlier_table(result: AnalysisResult) -> Table:
    """The columns of Table 5 of arXiv:2410.05258v2 for every model and kind of activation."""
    rows = [
        [
            label_of(analysis),
            kind,
            positions,
            *(_short(row["top"].get(rank)) for rank in _RANKS),
            _short(row["median"]),
            _short(row["kurtosis"]),
            count(row.get("massive")),
            count(row["count"]),
        ]
        for analysis in result.models
        for kind, by_positions in (analysis.outliers["table"] if analysis.outliers else {}).items()
        for positions, row in by_positions.items()
    ]
    tops = [f"top-{rank}" for rank in _RANKS]
    headers = ["Model", "Activation", "Over", *tops, "Median", "Kurtosis", "Massive", "n"]
    return table("Absolute values.", headers, rows)


def largest_table(analysis: ModelAnalysis) -> Table:
    """Places of the largest logits and hidden states."""
    kinds = analysis.outliers["table"] if analysis.outliers else {}
    rows = [
        [
            kind,
            _short(entry["value"]),
            pairs({x: entry.get(x) for x in _PLACES}),
            Cell(text=_tokens(entry), kind="long"),
        ]
        for kind in (LOGITS, HIDDEN)
        for row in [kinds.get(kind, {}).get(ALL_POSITIONS)]
        if row is not None
        for entry in row.get("largest", [])
    ]
    headers = ["Activation", "Size", "Place", "Token"]
    return table("The ten largest, position 0 included.", headers, rows)


def provenance_tables(result: AnalysisResult) -> list[Table]:
    """The models, and the analysis itself."""
    headers = ["Model", "Attention", "Parameters", "Weights", "Ran in", "Windows", "Tokens", "Path"]
    models = [
        [
            label_of(analysis),
            str(model.get("attention_type") or model.get("type") or MISSING),
            count(model.get("parameters")),
            str(model.get("weights") or "none here"),
            f"{model.get('dtype')} on {model.get('device')}" if analysis.attention else "not run",
            _windows(analysis.tokens["lengths"]) if analysis.tokens else MISSING,
            analysis.tokens["sha256"][:16] if analysis.tokens else MISSING,
            str(model.get("path")),
        ]
        for analysis in result.models
        for model in [analysis.model]
    ]
    documents = result.text["documents"]
    more = [f"{len(documents) - 5} more"] if len(documents) > 5 else []
    facts = {
        "Created": result.created,
        "Text": result.text["source"],
        "Documents": listing([*documents[:5], *more]) or MISSING,
        "Text hash": result.text["sha256"],
        "Settings": pairs(dict(result.settings)),
        "Commit": (result.commit or "not recorded") + (" with changes" if result.dirty else ""),
        "Versions": pairs(result.versions),
        "Hardware": pairs(result.hardware),
    }
    return [
        table("Weights and tokens as hashes: equal ones are equal inputs.", headers, models),
        table("The analysis.", ["", ""], facts.items()),
    ]


def notes(result: AnalysisResult) -> list[str]:
    """Facts that a reader must know before comparing columns."""
    sentences = [note for analysis in result.models for note in analysis.notes]
    hashes = {analysis.tokens["sha256"] for analysis in result.models if analysis.tokens}
    if len(hashes) > 1:
        sentences.append(
            "The models did not read the same tokens: their tokenizers, their BOS or their windows "
            "differ, so positions and distances are not the same text."
        )
    return sentences + [
        f"{label_of(analysis)}: {flag}"
        for analysis in result.models
        for record in (analysis.lambdas, analysis.lambda_log)
        for flag in (record["flags"] if record else ())
    ]


def _numbers(values: Sequence[float]) -> str:
    return ", ".join(number(value, 3) for value in values)


def _short(value: Any) -> str:
    """A number with three decimals, or with one decimal from 100 on."""
    is_large = isinstance(value, int | float) and abs(value) >= 100
    return number(value, 1 if is_large else 3)


def _tokens(entry: LargeValue) -> str:
    if "token" in entry:
        return _visible(entry["token"])
    return f"{_visible(entry.get('query_token'))} to {_visible(entry.get('key_token'))}"


def _visible(text: Any) -> str:
    return f"“{str(text).translate(WHITE_SPACE)}”"


def _windows(lengths: Sequence[int]) -> str:
    return f"{len(lengths):,} of up to {max(lengths):,}, {sum(lengths):,} tokens"
