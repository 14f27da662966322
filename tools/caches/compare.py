"""What do dropped keys and caches of few bits cost, by attention type?

Trains softmax, V1 and V2 on the tasks of :mod:`tools.caches.tasks`. Every model then reads on from
a prompt through ``generate``: with its whole cache, with a share of the prompt's keys by every
policy of :mod:`tools.caches.pruned`, and with transformers' quantised cache (hqq, groups as wide as
a query, so that each map has its own scale). The same command again continues what was interrupted.

    PYTHONPATH=src python -m tools.caches.compare --out FOLDER --record FILE.json
"""

import argparse
import itertools
from collections.abc import Iterator, Sequence
from contextlib import nullcontext
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from transformers import DynamicCache, QuantizedCache

from diffattn.files.io import read_json, write_json
from diffattn.lab.records.run import git_state, hardware, package_versions
from diffattn.lab.stats.intervals import mean_interval
from diffattn.lab.stats.paired import paired_difference
from diffattn.models.loading import load_model
from tools.caches.pruned import POLICIES, dropping, logits_after, pruned_cache
from tools.caches.tasks import TASKS, inputs, score, trained

TYPES = ("softmax", "diff_v2", "diff")
SHARES = (1 / 2, 1 / 4, 1 / 8)
BITS = (8, 4, 2)
SEEDS = range(3)
Values = dict[str, dict[str, list[float]]]
"""Type to cache to values, one per seed."""


def caches(model: Any) -> Iterator[tuple[str, Any, Any]]:
    """Name, cache, and ``None`` or the policy and the share that it keeps."""
    yield "whole", DynamicCache(config=model.config), None
    for policy, share in itertools.product(POLICIES, SHARES):
        yield f"{policy} {share:g}", pruned_cache(), (policy, share)
    width = model.config.head_dim
    for bits in BITS:
        options = {"axis_key": 1, "axis_value": 1, "q_group_size": width}
        yield f"{bits} bits", QuantizedCache("hqq", model.config, nbits=bits, **options), None


def measure(task: str, folder: Path, ids: Tensor, labels: Tensor, seed: int) -> dict[str, float]:
    """The score with every cache; kept beside the model."""
    if (folder / "caches.json").exists():
        return dict(read_json(folder / "caches.json"))
    model, _ = load_model(str(folder))
    model.generation_config.eos_token_id = None  # a given token may be one
    values = {}
    for name, cache, drops in caches(model):
        with nullcontext() if drops is None else dropping(model, drops[0], drops[1], seed):
            logits = logits_after(model, ids, ids.shape[1] - labels.shape[1], cache)
        values[name] = score(task, logits, labels)
    write_json(folder / "caches.json", values)
    return values


def measured(task: str, out: Path, types: Sequence[str]) -> Values:
    """Train what is missing and measure every model."""
    values: Values = {name: {} for name in types}
    for seed, name in itertools.product(SEEDS, types):
        folder = trained(task, name, seed, out)
        for cache, value in measure(task, folder, *inputs(task, out), seed).items():
            values[name].setdefault(cache, []).append(value)
        print(task, name, seed, flush=True)
    return values


def compared(values: Values) -> dict[str, dict[str, dict[str, Any]]]:
    """Intervals by type and cache: ``change`` from the whole cache; ``random`` and ``window``, the
    differences to these policies at the same share; ``softmax``, of the change to softmax's; and
    ``softmax_random``, of the difference to ``random`` to softmax's."""
    table: dict[str, dict[str, dict[str, Any]]] = {}
    for name, by_cache in values.items():
        rows = table.setdefault(name, {})
        for cache, numbers in by_cache.items():
            policy, _, share = cache.partition(" ")
            chance = f"random {share}"
            change = _minus(numbers, by_cache["whole"])
            row = rows[cache] = {"change": mean_interval(change).recorded()}
            if policy in ("signed", "absolute"):
                for other in ("random", "window"):
                    against = paired_difference(numbers, by_cache[f"{other} {share}"])
                    row[other] = against.recorded()
            if name != "softmax":
                twin = _minus(values["softmax"][cache], values["softmax"]["whole"])
                row["softmax"] = paired_difference(change, twin).recorded()
                if "random" in row:
                    gain = _minus(numbers, by_cache[chance])
                    twin = _minus(values["softmax"][cache], values["softmax"][chance])
                    row["softmax_random"] = paired_difference(gain, twin).recorded()
    return table


def _minus(numbers: list[float], others: list[float]) -> list[float]:
    return [number - other for number, other in zip(numbers, others, strict=True)]


def main() -> None:
    """Train, measure and write the record."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, required=True, help="folder of the runs")
    parser.add_argument("--record", type=Path, required=True)
    parser.add_argument("--tasks", nargs="+", choices=TASKS, default=TASKS)
    parser.add_argument("--types", nargs="+", choices=TYPES, default=TYPES)
    args = parser.parse_args()
    torch.set_num_threads(1)
    types = [name for name in TYPES if name in {"softmax", *args.types}]
    values = {task: measured(task, args.out, types) for task in args.tasks}
    commit, dirty = git_state()
    facts = {
        "kind": "caches",
        "schema": 2,
        "date": datetime.now(UTC).date().isoformat(),
        "seeds": list(SEEDS),
        "commit": commit,
        "dirty": dirty,
        "versions": package_versions(),
        "hardware": hardware(),
        "values": values,
        "compared": {task: compared(values[task]) for task in values},
    }
    write_json(args.record, facts)


if __name__ == "__main__":
    main()
