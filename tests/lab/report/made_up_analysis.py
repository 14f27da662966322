"""An analysis that no model made: two models with weights and a run without."""

from diffattn.lab.records.analysis import AnalysisResult, ModelAnalysis

DISTANCES = [0, 1, 2, 4]


def _model(label, kind):
    return {
        "label": label, "path": f"runs/{label}", "type": "diff_transformer", "attention_type": kind,
        "parameters": 1000, "weights": "0123456789abcdef", "dtype": "float32", "device": "cpu",
    }  # fmt: skip


def _layer(*, two):
    kinds = ("signed", "absolute", "map_1", "map_2") if two else ("map_1",)
    names = ["context_rms", "value_rms", "sink", "sink_share", "entropy_1", "entropy"]
    if two:
        names += ["cancelled", "cancelled_by_uniform", "negative_mass", "correlation"]
    of = {kind: {"first": 0.3, "ranges": [0.1, 0.2, 0.4, 0.0]} for kind in kinds}
    if two:
        of["cancelled_share"] = {"first": 0.5, "ranges": [0.1, 0.2, None, None]}
    similar = {kind: 0.8 for kind in kinds if kind != "absolute"}
    unknown = {"correlation": [0.1, None]} if two else {}
    return {
        "heads": {name: [0.25, 0.5] for name in names} | unknown,
        "by_distance": of, "map_cosine": similar, "map_correlation": dict.fromkeys(similar),
        "cka": 0.4, "queries": 60,
    }  # fmt: skip


def _outliers():
    logit = {
        "value": 9.5, "layer": 0, "map": 1, "head": 1, "text": 0, "query": 5, "key": 2,
        "query_token": "a\n", "key_token": "<b>",
    }  # fmt: skip
    hidden = {"value": 120.5, "layer": 1, "channel": 3, "text": 0, "position": 0, "token": " the"}
    table = {}
    for kind, entry in (("attention logits", logit), ("hidden states", hidden)):
        row = {
            "count": 900, "top": {"1": 9.5, "2": 8.0}, "median": 0.5, "kurtosis": 4.0,
            "massive": 0, "largest": [entry],
        }  # fmt: skip
        table[kind] = {"all positions": row, "without position 0": row | {"kurtosis": None}}
    small = {"largest": 9.5, "median": 0.5, "kurtosis": 3.0}
    layer = {kind: {"all positions": small, "without position 0": small} for kind in table}
    return {"table": table, "layers": [layer, layer]}


def _lambdas():
    of = {
        "lam": 0.3, "mean": [0.2, 0.4], "std": [0.0, 0.0], "min": [-0.1, 0.4], "max": [0.2, 0.4],
        "below_0": [0.5, 0.0], "above_1": [0.0, 0.0],
    }  # fmt: skip
    return {"layers": [of, of], "lambda_init": [0.2, 0.35], "flags": ["Layer 0: λ is below 0."]}


def _log():
    return {
        "run": "diff-seed0", "steps": [0, 10], "values": [[0.2, 0.35], [-0.2, 0.4]],
        "lambda_init": [0.2, 0.35], "flags": [],
    }  # fmt: skip


def make_analysis():
    """Softmax, V1 and a run without weights."""
    read = {"lengths": [40, 22], "sha256": "ab" * 32}
    uniform = {"first": 0.1, "by_distance": [0.1, 0.2, 0.6, 0.0]}
    with_maps = [
        ModelAnalysis(
            model=_model(label, kind), tokens=read, attention=[_layer(two=two)] * 2,
            uniform=uniform, outliers=_outliers(), lambdas=_lambdas() if two else None,
        )
        for label, kind, two in (("one", "softmax", False), ("two", "diff", True))
    ]  # fmt: skip
    log = ModelAnalysis(
        model={"label": "run", "path": "runs/run"}, lambda_log=_log(), notes=["run has no weights."]
    )
    return AnalysisResult(
        text={"source": "a text", "documents": [f"{i}.txt" for i in range(7)], "sha256": "cd" * 32},
        settings={
            "tokens": 60, "window_tokens": None, "bos": None, "dtype": "float32",
            "distances": DISTANCES,
        },
        models=[*with_maps, log], created="2026-01-02T03:04:05+00:00", commit="0" * 40,
        dirty=False, versions={"python": "3.11"}, hardware={"machine": "x86_64"},
    )  # fmt: skip


def write_analysis(folder):
    """``analysis.json`` in ``folder``."""
    make_analysis().write(folder)
