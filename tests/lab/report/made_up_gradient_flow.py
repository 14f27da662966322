"""A folder of a gradient-flow study; every number in it is made up."""

from pathlib import Path
from typing import Any

from record_files import write_record, write_run

TYPES, OF_ARMS, SEEDS = ("softmax", "softmax_wide", "diff"), ("softmax_wide", "diff"), (0, 1)
ARMS: dict[str, dict[str, Any]] = {
    "base": {},
    "width-64": {"hidden_size": 64},
    "large-values": {"initializer_range": 0.1},
}
PHASES = {"start": [1], "late": [9, 10]}


def write_gradient_flow(folder: Path) -> Path:
    """Two types over two widths, and DIFF V1's heads in two layers."""
    model = {"num_heads": 8, "head_dim": 16, "num_hidden_layers": 2, "hidden_size": 128}
    train = {"num_steps": 10, "batch_tokens": 512}
    info = {"schema": 1, "kind": "gradient-flow", "created": "2001-02-03T04:05:06+00:00"}
    info |= {"scale": "laptop", "types": list(TYPES), "types_of_arms": list(OF_ARMS)}
    info |= {"arms": ARMS, "phases": PHASES, "seeds": list(SEEDS), "match": "params"}
    info |= {"config_hash": "0123", "config": {"model": model, "train": train}}
    write_record(folder / "study.json", info | {"data": {"source": "stdlib"}})
    for arm in ARMS:
        for name in TYPES if arm == "base" else OF_ARMS:
            for seed in SEEDS:
                write_run(
                    folder / "runs" / f"{arm}-{name}-seed{seed}",
                    {"model": model | {"attention_type": "diff"}, "train": train}, seed, {},
                    model={"parameters": 1000}, cost={"cpu_seconds": 12.0},
                )  # fmt: skip
    ratios = [
        {"arm": arm, "type": "diff", "baseline": "softmax_wide", "phase": phase}
        | {"measure": measure, "matrix": matrix, **_factor(8.0 if measure == "gradient" else 1.25)}
        for arm in ("base", "width-64")
        for phase in PHASES
        for measure in ("gradient", "update")
        for matrix in (("q", "ffn", "k2") if arm == "base" else ("q",))
    ]
    null = {"arm": "base", "type": "other seed", "baseline": "softmax_wide", "phase": "start"}
    ratios.append(null | {"measure": "gradient", "matrix": "q", **_factor(1.125)})
    slope = {"measure": "slope", "matrix": "all", **_factor(3.0)}
    ratios.append(null | {"type": "diff"} | slope)
    heads = [
        {"arm": "base", "type": "diff", "phase": phase, "layer": layer, "lambda_init": 0.25}
        | {key: _factor(0.0625) for key in ("head_rms", "to_factor", "norm_gain")}
        for phase in PHASES
        for layer in range(2)
    ]
    judgements = [
        {"id": "level", "says": "Made-up <b>claim</b>", "bound": 2.0, "verdict": "disagrees"}
        | _factor(8.0) | {"phases": ["start"], "why": ""},
        {"id": "updates", "says": "Made-up other", "bound": 2.0, "verdict": "uninformative"}
        | {"values": [], "mean": None, "low": None, "high": None, "level": None}
        | {"phases": ["start"], "why": "so are the control's"},
    ]  # fmt: skip
    results = {"schema": 1, "kind": "gradient-flow", "statement": "Made-up <i>statement</i>."}
    results |= {"protocol": {"name": "gradient_flow_study", "version": 1}}
    results |= {"definition": {"level": 2.0, "drift": 1.5, "half": [0.4, 0.6]}}
    results |= {"verdict": {"informative": True, "sentence": "Made-up verdict."}}
    parts = {"ratios": ratios, "heads": heads, "judgements": judgements}
    write_record(folder / "results.json", results | parts)
    return folder


def _factor(mean: float) -> dict[str, Any]:
    return {"values": [mean, mean], "mean": mean, "low": mean / 2, "high": 2 * mean, "level": 0.95}
