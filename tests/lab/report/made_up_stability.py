"""A folder of a stability study; every number in it is made up."""

from pathlib import Path
from typing import Any

from record_files import write_record, write_run

METRICS = ("loss", "loss_spike_share", "gradient_spike_share", "clipped_share")
TYPES, RATES, SEEDS = ("softmax", "diff"), (0.002, 0.128), (0, 1)


def write_stability(folder: Path) -> Path:
    """Two types at two rates; one run of DIFF V1 diverged."""
    model = {"num_heads": 8, "head_dim": 16, "intermediate_size": 344, "hidden_size": 128}
    train = {"num_steps": 200, "batch_tokens": 1024}
    info = {"schema": 1, "kind": "stability", "created": "2001-02-03T04:05:06+00:00"}
    info |= {"scale": "study", "types": list(TYPES), "seeds": list(SEEDS), "match": "params"}
    info |= {"learning_rates": list(RATES), "config_hash": "0123"}
    info |= {"config": {"model": model, "train": train}, "data": {"source": "stdlib"}}
    write_record(folder / "study.json", info)
    types = {}
    for kind in TYPES:
        rates = []
        for rate in RATES:
            names = [f"{kind}-lr{rate:g}-seed{seed}" for seed in SEEDS]
            steps = [150 if name == "diff-lr0.128-seed1" else None for name in names]
            for name, seed, step in zip(names, SEEDS, steps, strict=True):
                write_run(
                    folder / "runs" / name,
                    {"model": model | {"attention_type": kind}, "train": train}, seed,
                    {"validation_loss": None if step else 3.5}, cost={"wall_seconds": 12.0},
                    model={"parameters": 1000, "parameter_difference": 6},
                )  # fmt: skip
            at = {"learning_rate": rate, "runs": names, "diverged_steps": steps}
            at |= {"diverged": [step is not None for step in steps]}
            at |= {"median_gradient_norms": [0.5, 0.75]}
            at |= {metric: _summary([0.125, 0.375]) for metric in METRICS}
            rates.append(at)
        types[kind] = {"rates": rates, "sensitivity": _summary([0.5, 0.75])}
    pair = {"type": "diff", "baseline": "softmax", "p_value": 0.0123, "p_holm": 0.0456}
    differences = [
        pair | {"metric": metric, "learning_rate": rate, **_summary([0.0625, 0.1875])} | says
        for metric, rate, says in (
            ("loss", 0.128, {"why": "not both do"}),
            ("loss", None, {"rates": [0.128], "why": ""}),
            ("clipped_share", None, {"rates": list(RATES), "why": "at no rate do both"}),
            ("sensitivity", None, {}),  # as older records have it
        )
    ]
    to_nothing = {"metric": "loss", "learning_rate": 0.128, "why": ""}
    differences += [
        pair | to_nothing | {"baseline": floor} | _summary([-0.5, -0.25])
        for floor in ("none", "none_ffn")
    ]
    definition = {"window": 32, "deviations": 5.0, "least_loss": 0.1, "least_log_gradient": 0.6931}
    results = {"schema": 1, "kind": "stability", "statement": "Made-up <i>statement</i>."}
    results |= {"protocol": {"name": "stability_study", "version": 3}, "definition": definition}
    results |= {"verdict": {"informative": False, "sentence": "Made-up verdict.", "margin": 0.1}}
    results |= {"attending": {"softmax": [], "diff": [RATES[0]]}}
    write_record(folder / "results.json", results | {"types": types, "differences": differences})
    return folder


def _summary(values: list[float]) -> dict[str, Any]:
    mean = sum(values) / len(values)
    return {"values": values, "mean": mean, "low": mean - 0.25, "high": mean + 0.25, "level": 0.95}
