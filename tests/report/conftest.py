"""A study folder of made-up numbers, in the schema that the report reads."""

import math
import random
from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest

from diffattn.records.results import (
    BenchCase,
    BenchResult,
    BenchRow,
    BenchRun,
    Spread,
    Verdict,
)
from diffattn.records.run import RunRecord
from diffattn.stats.intervals import mean_interval
from diffattn.stats.paired import paired_difference
from record_files import write_finished, write_record

TYPES = ("softmax", "diff", "diff_v2", "shared_diff")
OFFSETS = {"softmax": 0.0, "diff": -0.031, "diff_v2": 0.002, "shared_diff": 0.027}
TOKENS = ["def", " ", "main", "(", "a", "<script>", "alert(1)", "</script>", ")", ":", "\n", " "]


def write_study(
    folder: Path,
    *,
    seeds: Sequence[int] = (0, 1, 2),
    types: Sequence[str] = TYPES,
    scale: str = "laptop",
    tokens: Sequence[str] = TOKENS,
    num_layers: int = 4,
    num_steps: int = 300,
) -> Path:
    """Write a whole study; every number in it is made up."""
    random.seed(7)
    model = {"attention_type": "softmax", "num_heads": 8, "num_kv_heads": 8, "head_dim": 16}
    model |= {"hidden_size": 128, "intermediate_size": 344, "num_hidden_layers": num_layers}
    train = {"num_steps": num_steps, "batch_tokens": 4096, "seq_len": 256, "learning_rate": 1e-3}
    data = {"source": "stdlib", "corpus_hash": "made-up-hash", "train_tokens": 3_141_592}
    data |= {"validation_tokens": 65_536, "validation_bytes": 190_000}
    data |= {"vocab_size": 1024, "python": "3.11.7"}
    config = {"model": model, "train": train, "data": {"source": "stdlib", "vocab_size": 1024}}
    study = {"schema": 1, "scale": scale, "created": "2001-02-03T04:05:06+00:00"}
    study |= {"types": list(types), "seeds": list(seeds), "config": config, "data": data}
    study |= {"config_hash": "0123456789abcdef", "match": "params"}
    write_record(folder / "study.json", study)
    losses: dict[str, dict[int, float]] = {}
    costs = {}
    for name in types:
        losses[name] = {}
        for seed in seeds:
            loss, cost = _write_run(folder, name, seed, config, num_layers, num_steps)
            losses[name][seed] = loss
            costs[f"{name}-seed{seed}"] = cost
    write_record(folder / "costs.json", {"schema": 1, "runs": costs})
    write_record(folder / "results.json", _results(scale, losses))
    write_record(folder / "maps.json", _maps(types, tokens, num_layers))
    return folder


def _write_run(
    folder: Path, kind: str, seed: int, config: dict[str, Any], num_layers: int, num_steps: int
) -> tuple[float, dict[str, Any]]:
    name = f"{kind}-seed{seed}"
    heads = 4 if kind in ("diff", "shared_diff") else 8
    extra = {"softmax": 0, "diff": 384, "diff_v2": -1_280, "shared_diff": -640}[kind]
    shape = config["model"] | {"attention_type": kind, "num_heads": heads, "num_kv_heads": heads}
    shape["intermediate_size"] = 304 if kind == "diff_v2" else 344
    record = RunRecord(
        name=name,
        config=config | {"model": shape},
        seed=seed,
        backends={} if kind == "softmax" else {"diff_attention": "composed"},
        model={
            "parameters": 912_384 + extra,
            "non_embedding_parameters": 781_312 + extra,
            "train_flops_per_token": 6_123_456 + 6 * extra,
            "parameter_difference": extra,
            "flops_difference": 6 * extra,
        },
        created="2001-02-03T04:05:07+00:00",
        commit="c0ffee" * 6 + "c0ff",
        dirty=kind == "diff",
        versions={"python": "3.11.7", "torch": "0.0 (made up)"},
        hardware={"processor": "Made-up processor", "machine": "none"},
    )
    run = folder / "runs" / name
    write_record(run / "run.json", asdict(record))
    final = 3.21 + OFFSETS[kind] + 0.02 * seed + random.gauss(0, 0.004)
    starts = [0.8 - 0.6 * math.exp(-0.3 * layer) for layer in range(num_layers)]
    rows, lam = [], None
    for step in range(0, num_steps + 1, 5):
        progress = step / num_steps
        loss = final + (6.93 - final) * math.exp(-6 * progress)
        row = {"step": step, "tokens": 4096 * step, "learning_rate": 1e-3 * (1 - progress)}
        row |= {"train_loss": loss + random.gauss(0, 0.05), "gradient_norm": 1.0}
        if step % 25 == 0:
            row["validation_loss"] = loss
            if kind != "softmax":
                lam = [s + 0.1 * progress * (1 + layer / 4) for layer, s in enumerate(starts)]
                lam = [round(x + random.gauss(0, 0.01), 4) for x in lam]
                row["lam"] = lam
        rows.append(row)
    result = {"schema": 1, "run": name, "validation_loss": final, "tokens": 4096 * num_steps}
    result |= {"validation_bits_per_byte": final * 0.4976, "lam": lam}
    result["lambda_init"] = starts if kind in ("diff", "shared_diff") else None
    write_finished(run, result, rows)
    cost = {"schema": 1, "run": name, "wall_seconds": 60 + seed, "cpu_seconds": 58.5 + seed}
    speed = {"softmax": 8_000, "diff": 5_600, "diff_v2": 6_100, "shared_diff": 5_200}[kind]
    cost |= {"tokens_per_second": speed - 10 * seed, "peak_bytes": 500_000_000 + speed * 1000}
    write_record(run / "costs.json", cost)
    return final, cost


def _summary(values: list[float], interval: Any) -> dict[str, Any]:
    keys = ("mean", "low", "high", "level", "n")
    return {"values": values} | {key: getattr(interval, key) for key in keys}


def _results(scale: str, losses: dict[str, dict[int, float]]) -> dict[str, Any]:
    base = list(losses["softmax"].values())
    types, differences = {}, []
    for kind, by_seed in losses.items():
        values = list(by_seed.values())
        runs = [f"{kind}-seed{seed}" for seed in by_seed]
        types[kind] = {"runs": runs, "validation_loss": _summary(values, mean_interval(values))}
        if kind != "softmax":
            pairs = [[run, run.replace(kind, "softmax")] for run in runs]
            change = [a - b for a, b in zip(values, base, strict=True)]
            entry = {"type": kind, "baseline": "softmax", "metric": "validation_loss"}
            entry |= {"runs": pairs} | _summary(change, paired_difference(values, base))
            differences.append(entry)
    return {
        "schema": 1,
        "protocol": {"name": "matched_comparison", "version": 1},
        "scale": scale,
        "types": types,
        "differences": differences,
        "statement": "Made-up statement: 4 DIFF heads are < 8, below the tested range.",
        "complete": True,
    }


def _map(size: int, focus: int) -> list[list[float]]:
    rows = []
    for query in range(size):
        weights = [random.random() ** 3 + 2.0 * (key == query - focus) for key in range(query + 1)]
        rows.append([w / sum(weights) for w in weights] + [0.0] * (size - query - 1))
    return rows


def _maps(types: Sequence[str], tokens: Sequence[str], num_layers: int) -> dict[str, Any]:
    layers: dict[str, Any] = {}
    for kind in types:
        first, second, lam = _map(len(tokens), 1), _map(len(tokens), 3), 0.53
        entry = {"run": f"{kind}-seed0", "layer": num_layers - 1, "head": 0}
        entry["map_1"] = [[round(x, 4) for x in row] for row in first]
        if kind != "softmax":
            entry["map_2"] = [[round(x, 4) for x in row] for row in second]
            entry["difference"] = [
                [round(a - lam * b, 4) for a, b in zip(*pair, strict=True)]
                for pair in zip(first, second, strict=True)
            ]
            entry["lam"] = lam
        layers[kind] = entry
    return {"schema": 1, "tokens": list(tokens), "layers": layers}


@pytest.fixture
def make_study(tmp_path: Path) -> Callable[..., Path]:
    """Writes a made-up study into a folder of the given name."""
    return lambda name="study", **options: write_study(tmp_path / name, **options)


def spread_of(median: float) -> Spread:
    """Quartiles 5 % and extremes 10 % to either side."""
    low, high, minimum, maximum = (median * x for x in (0.95, 1.05, 0.9, 1.1))
    return Spread(median=median, low=low, high=high, minimum=minimum, maximum=maximum, rounds=5)


def bench_row(role: str, name: str, seconds: float, over_t: float, **more: Any) -> BenchRow:
    """A contender that ran."""
    return BenchRow(
        contender=name, role=role, backend=more.pop("backend", name), status="ok",
        check={"worst": "output", "error": 1e-7, "budget": 5e-7, "compared": "everything"},
        seconds=spread_of(seconds), ratio_t=spread_of(over_t), flops=10**9,
        flops_per_second=1e9 / seconds, share_of_peak=0.4, **more,
    )  # fmt: skip


def bench_case(suite: str, shape: dict[str, Any], rows: list[BenchRow], **more: Any) -> BenchCase:
    """One case of a made-up run."""
    values: dict[str, Any] = {"device": "cpu", "dtype": "float32", "mode": "forward"} | more
    return BenchCase(
        suite=suite, run="cpu-00c0ffee", shape=shape, created="2001-02-03T04:05:06+00:00",
        matmul_flops_per_second=1e11, rows=rows, **values,
    )  # fmt: skip


@pytest.fixture
def bench_result() -> BenchResult:
    """A record of two lengths, a decode shape and a model; every number is made up."""
    cases = []
    for length in (512, 1_024):
        rows = [
            bench_row("T", "sdpa", 0.01, 1.0, backend="sdpa (flash)", peak_bytes=2**20),
            bench_row("TC", "softmax_chunked", 0.009, 0.9, backend="chunked"),
            bench_row("DIFF", "chunked", 0.0096, 0.96, ratio_tc=spread_of(1.07),
                      peak_bytes=3 * 2**19),
            BenchRow(contender="reference", role="DIFF", backend=None, status="not run",
                     reason="its maps would take about 5.0 GiB, the limit is 4"),
            BenchRow(contender="<flex>", role="DIFF", backend=None, status="failed",
                     reason="output: error 1.00e+00"),
        ]  # fmt: skip
        limit = Verdict(target="forward at most 1.05 × T", contender="chunked", value=0.96,
                        limit=1.05 if length == 512 else 0.9)  # fmt: skip
        shape = {"B": 1, "H": 4, "d": 64, "N": length}
        cases.append(bench_case("ops", shape, rows, verdicts=[limit]))
    rows = [bench_row("T", "sdpa", 0.001, 1.0), bench_row("DIFF", "reference", 0.002, 2.0)]
    shape = {"B": 1, "H": 4, "d": 64, "N": 1, "S": 4_096}
    cases.append(bench_case("decode", shape, rows, mode="decode"))
    rows = [
        bench_row("T", "softmax_sdpa", 0.5, 1.0, backend="sdpa", tokens_per_second=8_192.0),
        bench_row("TC", "softmax", 0.5, 1.0, backend="chunked", tokens_per_second=8_192.0),
        bench_row("DIFF", "diff", 0.512, 1.024, backend="chunked", tokens_per_second=8_000.0),
    ]
    shape = {"size": "3b", "B": 2, "N": 2_048, "layers": 28}
    cases.append(bench_case("models", shape, rows, device="cuda"))
    run = BenchRun(
        name="cpu-00c0ffee", created="2001-02-03T04:05:06+00:00", commit="c0ffee" * 7, dirty=True,
        source="0123456789abcdef", versions={"torch": "0.0 (made up)", "triton": None},
        hardware={"processor": "Made-up <processor>", "threads": 1}, settings={"rounds": 3},
    )  # fmt: skip
    return BenchResult(runs={run.name: run}, cases=cases)
