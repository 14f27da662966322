"""From finished runs to the comparison's results, costs, example maps and plain words."""

from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch

from diffattn.models.loading import load_model
from diffattn.probes.attention_rows import example_maps
from diffattn.records.io import read_json, write_json
from diffattn.stats.intervals import Interval, mean_interval
from diffattn.stats.paired import paired_difference
from diffattn.studies.text.comparison import ComparisonConfig
from diffattn.training.prepare import PreparedData

EXAMPLE_TOKENS = 48
# The papers' models have 8 DIFF heads or more and see 10 billion tokens or more.
SMALLEST_TESTED_HEADS = 8
FEWEST_TESTED_TOKENS = 10_000_000_000


def summarise(config: ComparisonConfig, data: PreparedData, folder: Path) -> None:
    """Write ``results.json``, ``costs.json`` and ``maps.json`` of a finished comparison.

    Args:
        config: The comparison.
        data: Its tokens.
        folder: Study folder with ``runs/``.

    Raises:
        CheckpointError: A run's records are missing or damaged.
    """
    names = [member.config.name for member in config.members()]
    results = {name: read_json(folder / "runs" / name / "results.json") for name in names}
    costs = {name: read_json(folder / "runs" / name / "costs.json") for name in names}
    write_json(folder / "results.json", comparison_results(config, results))
    write_json(folder / "costs.json", {"schema": 1, "runs": costs})
    write_json(folder / "maps.json", _maps(config, data, folder))


def comparison_results(
    config: ComparisonConfig, results: dict[str, dict[str, Any]]
) -> dict[str, Any]:
    """Losses per type and paired differences to softmax, each with its runs and interval.

    Args:
        config: The comparison.
        results: Run name to what its ``results.json`` holds.
    """
    runs = {name: [f"{name}-seed{seed}" for seed in config.seeds] for name in config.types}
    losses = {
        name: [results[run]["validation_loss"] for run in members] for name, members in runs.items()
    }
    differences = [
        {
            "type": name,
            "baseline": "softmax",
            "metric": "validation_loss",
            "runs": [list(pair) for pair in zip(runs[name], runs["softmax"], strict=True)],
            "values": [a - b for a, b in zip(losses[name], losses["softmax"], strict=True)],
            **_interval(paired_difference(losses[name], losses["softmax"])),
        }
        for name in config.types
        if name != "softmax" and "softmax" in runs
    ]
    return {
        "schema": 1,
        "protocol": {"name": "matched_comparison", "version": 1},
        "scale": config.scale,
        "types": {
            name: {
                "runs": runs[name],
                "validation_loss": {
                    "values": losses[name],
                    **_interval(mean_interval(losses[name])),
                },
            }
            for name in config.types
        },
        "differences": differences,
        "statement": statement(config),
        "complete": True,
    }


def statement(config: ComparisonConfig) -> str:
    """What this scale can and cannot show, in plain words."""
    train = config.base.train
    tokens = train.num_steps * train.batch_tokens
    heads = min(
        (
            member.config.model.num_heads
            for member in config.members()
            if member.config.model.attention.lambda_vectors
        ),
        default=None,
    )
    below = []
    if heads is not None and heads < SMALLEST_TESTED_HEADS:
        below.append(f"{heads} DIFF heads (the papers use {SMALLEST_TESTED_HEADS} or more)")
    if tokens < FEWEST_TESTED_TOKENS:
        below.append(f"{tokens:,} training tokens per run (the papers use 10 billion or more)")
    shows = (
        "It shows how these implementations train side by side on the same tokens, and what they "
        "cost here."
    )
    limits = (
        f"This comparison is below the tested range of the papers: {' and '.join(below)}. It "
        "cannot confirm or refute their claims about large models."
        if below
        else "Heads and tokens lie in the range the papers test."
    )
    seeds = len(config.seeds)
    spread = (
        "With one seed there is no interval: a difference here may be chance."
        if seeds == 1
        else f"Intervals are over {seeds} seeds of initial weights and data order; one learning "
        "rate is used for all types, tuned for none."
    )
    return f"{limits} {shows} {spread}"


def _interval(interval: Interval) -> dict[str, Any]:
    values = asdict(interval)
    values.pop("method")
    return values


def _maps(config: ComparisonConfig, data: PreparedData, folder: Path) -> dict[str, Any]:
    """Maps of the middle layer's first head on the first validation tokens: chosen in advance."""
    length = min(EXAMPLE_TOKENS, config.base.train.seq_len, data.validation.num_tokens)
    ids = torch.tensor(data.validation.tokens[:length].tolist())
    layer = config.base.model.num_hidden_layers // 2
    layers: dict[str, Any] = {}
    for name in config.types:
        run = f"{name}-seed{config.seeds[0]}"
        model, _ = load_model(str(folder / "runs" / run / "model"))
        maps = example_maps(model, ids[None], layer=layer, head=0)
        entry: dict[str, Any] = {"run": run, "layer": layer, "head": 0}
        entry["map_1"] = _rounded(maps.map_1)
        if maps.map_2 is not None and maps.difference is not None:
            entry["map_2"] = _rounded(maps.map_2)
            entry["difference"] = _rounded(maps.difference)
            # Every row of the difference sums to 1 − λ; V2 has one λ per row, so give their mean.
            entry["lam"] = round(1.0 - float(maps.difference.sum(-1).mean()), 4)
        layers[name] = entry
    return {"schema": 1, "tokens": _labels(data.tokenizer, ids), "layers": layers}


def _rounded(x: torch.Tensor) -> list[list[float]]:
    return [[round(value, 4) for value in row] for row in x.tolist()]


def _labels(tokenizer: Any, ids: Sequence[int] | torch.Tensor) -> Sequence[str]:
    return [tokenizer.decode([int(i)]) for i in ids]
