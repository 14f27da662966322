"""A folder of a scaling study; every number in it is made up."""

from pathlib import Path
from typing import Any

from record_files import write_record, write_run

TYPES, HIDDEN, STEPS, SEEDS = ("softmax", "diff"), (32, 64), (100, 200), (0, 1)


def write_scaling(folder: Path) -> Path:
    """Two types, two sizes and two budgets; over tokens the fit of DIFF V1 was refused."""
    model = {"num_heads": 4, "head_dim": 16, "intermediate_size": 160, "hidden_size": 64}
    train = {"num_steps": 200, "batch_tokens": 512}
    axes = {"parameters": [(h, 200) for h in HIDDEN], "tokens": [(64, s) for s in STEPS]}
    names: list[str] = []
    for kind in TYPES:
        for hidden, steps in dict.fromkeys([*axes["parameters"], *axes["tokens"]]):
            for seed in SEEDS:
                names.append(_name(kind, hidden, steps, seed))
                shape = {"model": model | {"attention_type": kind, "hidden_size": hidden}}
                shape |= {"train": train | {"num_steps": steps}}
                write_run(
                    folder / "runs" / names[-1], shape, seed, {"validation_loss": 4.0 + 0.5 * seed},
                    model={"parameters": 1000, "parameter_difference": 6},
                    cost={"wall_seconds": 12.0},
                )  # fmt: skip
    info = {"schema": 1, "kind": "scaling", "created": "2001-02-03T04:05:06+00:00"}
    info |= {"scale": "laptop", "types": list(TYPES), "seeds": list(SEEDS), "match": "params"}
    info |= {"runs": names, "config_hash": "0123"}
    info |= {"config": {"model": model, "train": train}, "data": {"source": "stdlib"}}
    write_record(folder / "study.json", info)
    results = {"schema": 1, "kind": "scaling", "statement": "Made-up <i>statement</i>."}
    results |= {"protocol": {"name": "scaling_study", "version": 1}, "extrapolate": False}
    message = {"informative": True, "sentence": "Made up."}
    verdict = {"sentence": "Made-up <b>verdict</b>.", "axes": dict.fromkeys(axes, message)}
    results |= {"verdict": verdict}
    results |= {"axes": {axis: _axis(axis, where) for axis, where in axes.items()}}
    write_record(folder / "results.json", results)
    return folder


def _axis(axis: str, where: list[tuple[int, int]]) -> dict[str, Any]:
    types = {}
    for kind in TYPES:
        points = []
        for hidden, steps in where:
            sizes = {"parameters": 3_000 * hidden, "tokens": 512 * steps}
            loss = {"values": [4.0, 4.5], "mean": 4.25, "low": 4.125, "high": 4.375, "level": 0.95}
            runs = [_name(kind, hidden, steps, seed) for seed in SEEDS]
            points.append({"x": sizes[axis], **sizes, "runs": runs, "loss": loss})
        ends = {"low": 0.25, "high": 0.75, "level": 0.95}
        fit: dict[str, Any] = {"points": 4, "r2": 0.875, "max_error": 0.125, "refused": None}
        fit["parameters"] = {part: {"mean": 0.5} | ends for part in ("a", "b", "c")}
        if (kind, axis) == ("diff", "tokens"):
            fit |= {"r2": None, "max_error": None, "parameters": {}}
            fit |= {"refused": "made-up <i>why</i>"}
        types[kind] = {"points": points, "fit": fit}
    row: dict[str, Any] = {"type": "diff", "baseline": "softmax", "x": 96_000.0, "point": 0}
    row |= {"other_x": 120_000.0, "loss": 4.25, "ratio": 0.8, "low": 0.6, "high": 0.9}
    row |= {"level": 0.95, "extrapolated": True, "refused": None}
    second = row | dict.fromkeys(("other_x", "loss", "ratio", "low", "high"))
    second |= {"point": 1, "extrapolated": False, "refused": "made-up <i>reason</i>"}
    of = {"form": "offset", "unbent": [], "read_at": 1, "types": types}
    return of | {"equivalents": [row, second]}


def _name(kind: str, hidden: int, steps: int, seed: int) -> str:
    return f"{kind}-h{hidden}-s{steps}-seed{seed}"
