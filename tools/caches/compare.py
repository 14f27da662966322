"""What do dropped keys and caches of few bits cost, by attention type?

Trains softmax, V1 and V2 on noisy recall almost as ``diffattn reproduce recall`` does, and softmax
and V2 on bytes of Python's library. Every model then answers through ``generate``: with its whole
cache, with a share of the prompt's keys by every policy of :mod:`tools.caches.pruned`, and with
transformers' quantised cache (hqq, groups as wide as a query, so that each map has its own scale).
The measure is the accuracy of all questions (recall), and the loss of the tokens after the prompt
in nats (text). The same command again continues what was interrupted.

    PYTHONPATH=src python -m tools.caches.compare --out FOLDER --record FILE.json
"""

import argparse
import itertools
from collections.abc import Iterator
from contextlib import nullcontext
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from transformers import DynamicCache, QuantizedCache

from diffattn.files.io import read_json, write_json
from diffattn.lab.catalog.models import VARIANTS
from diffattn.lab.catalog.recipes.catalog import plan
from diffattn.lab.catalog.recipes.recall import RECALL
from diffattn.lab.data.tokens import TokenDataset
from diffattn.lab.records.run import git_state, hardware, package_versions
from diffattn.lab.stats.intervals import mean_interval
from diffattn.lab.stats.paired import paired_difference
from diffattn.lab.training.prepare import PreparedData, prepare_data
from diffattn.lab.training.recall import TEST, held_out, train_recall
from diffattn.lab.training.recall_config import RecallConfig
from diffattn.lab.training.run import train
from diffattn.lab.training.settings import apply_settings
from diffattn.models.loading import load_model
from tools.caches.pruned import POLICIES, dropping, logits_after, pruned_cache

TYPES = {"recall": ("softmax", "diff_v2", "diff"), "text": ("softmax", "diff_v2")}
SHARES = (1 / 2, 1 / 4, 1 / 8)
BITS = (8, 4)
SEEDS = range(3)
TEXT = (
    "model.hidden_size=64",
    "model.num_hidden_layers=2",
    "model.num_heads=4",
    "model.embedding_multiplier=8",
    "train.num_steps=200",
    "train.batch_tokens=1024",
)
"""Changes to the recipe ``laptop``."""
_HELD_OUT = 128
"""Sequences of recall, to validate and again to test on."""
_ROWS, _PROMPT, _LENGTH = 64, 192, 224
"""Windows of held-out text; tokens before those that are scored; and with them."""
Values = dict[str, dict[str, list[float]]]
"""Type to cache to values, one per seed."""


def recall_run(name: str, seed: int) -> RecallConfig:
    """A run of the laptop's recall study with less noise, 16 tokens of 24, to learn sooner."""
    settings = RECALL["laptop"]()
    run = settings["tasks"][0]
    task = replace(run.task, noise_ratio=2 / 3)
    train = replace(
        run.train,
        seq_len=task.seq_len,
        batch_tokens=run.train.batch_sequences * task.seq_len,
        evaluation_tokens=_HELD_OUT * task.seq_len,
    )
    rate = settings["member_rates"].get(name, settings["learning_rates"][0])
    model = VARIANTS[name].twin(run.model, "params").config
    return replace(run, name=name, task=task, model=model, train=train.at(rate, seed))


def text_run(name: str, seed: int, data: PreparedData, folder: Path) -> None:
    """Train a small model on text."""
    config = apply_settings(plan("laptop").config(), list(TEXT))
    model = VARIANTS[name].twin(config.model, "params").config
    training = config.train.at(config.train.learning_rate, seed)
    train(replace(config, model=model, train=training), data, folder)


def caches(model: Any) -> Iterator[tuple[str, Any, Any]]:
    """Name, cache, and ``None`` or the policy and the share that it keeps."""
    yield "whole", DynamicCache(config=model.config), None
    for policy, share in itertools.product(POLICIES, SHARES):
        yield f"{policy} {share:g}", pruned_cache(), (policy, share)
    width = model.config.head_dim
    for bits in BITS:
        options = {"axis_key": 1, "axis_value": 1, "q_group_size": width}
        yield f"{bits} bits", QuantizedCache("hqq", model.config, nbits=bits, **options), None


def measure(folder: Path, ids: Tensor, labels: Tensor, seed: int) -> dict[str, dict[str, float]]:
    """Accuracy, as of recall, and loss, as of text, with every cache; kept beside the model."""
    if (folder / "caches.json").exists():
        return dict(read_json(folder / "caches.json"))
    model, _ = load_model(str(folder))
    model.generation_config.eos_token_id = None  # a given token may be one
    values = {}
    for name, cache, drops in caches(model):
        with nullcontext() if drops is None else dropping(model, drops[0], drops[1], seed):
            logits = logits_after(model, ids, ids.shape[1] - labels.shape[1], cache)
        nats = torch.nn.functional.cross_entropy(logits.double().mT, labels)
        hits = (logits.argmax(-1) == labels).double().mean()
        values[name] = {"recall": float(hits), "text": float(nats)}
    write_json(folder / "caches.json", values)
    return values


def recall_inputs() -> tuple[Tensor, Tensor]:
    """Held-out sequences, and the answers to the questions, which end them."""
    config = recall_run("softmax", 0)
    test = held_out(config, TEST)
    return test.input_ids, test.labels[:, -config.task.num_queries :]


def text_inputs(data: PreparedData) -> tuple[Tensor, Tensor]:
    """Windows of held-out text, and what follows each of their last tokens."""
    text = TokenDataset(data.validation, _LENGTH + 1)
    windows = torch.stack([text[i]["input_ids"] for i in range(_ROWS)])
    return windows[:, :-1], windows[:, _PROMPT + 1 :]


def measured(out: Path, types: dict[str, list[str]]) -> dict[str, Values]:
    """Train what is missing and measure every model; ``types`` are those of each task."""
    values: dict[str, Values] = {task: {name: {} for name in types[task]} for task in types}
    data = prepare_data(apply_settings(plan("laptop").config(), list(TEXT)).data, out / "data")
    for task, seed in itertools.product(types, SEEDS):
        for name in types[task]:
            folder = out / f"{task}-{name}-seed{seed}"
            if task == "recall":
                train_recall(recall_run(name, seed), folder)
                inputs = recall_inputs()
            else:
                text_run(name, seed, data, folder)
                inputs = text_inputs(data)
            for cache, value in measure(folder, *inputs, seed).items():
                values[task][name].setdefault(cache, []).append(value[task])
            print(task, name, seed, flush=True)
    return values


def compared(values: Values) -> dict[str, dict[str, dict[str, Any]]]:
    """Intervals by type and cache: ``change`` from the whole cache, ``random`` and ``window``, the
    differences to these policies at the same share, and ``softmax``, of the change to softmax's."""
    table: dict[str, dict[str, dict[str, Any]]] = {}
    for name, by_cache in values.items():
        rows = table.setdefault(name, {})
        for cache, numbers in by_cache.items():
            policy, _, share = cache.partition(" ")
            change = _minus(numbers, by_cache["whole"])
            row = rows[cache] = {"change": mean_interval(change).recorded()}
            if policy in ("signed", "absolute"):
                for other in ("random", "window"):
                    against = paired_difference(numbers, by_cache[f"{other} {share}"])
                    row[other] = against.recorded()
            if name != "softmax":
                twin = _minus(values["softmax"][cache], values["softmax"]["whole"])
                row["softmax"] = paired_difference(change, twin).recorded()
    return table


def _minus(numbers: list[float], others: list[float]) -> list[float]:
    return [number - other for number, other in zip(numbers, others, strict=True)]


def main() -> None:
    """Train, measure and write the record."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, required=True, help="folder of the runs")
    parser.add_argument("--record", type=Path, required=True)
    parser.add_argument("--tasks", nargs="+", choices=list(TYPES), default=list(TYPES))
    parser.add_argument("--types", nargs="+", choices=TYPES["recall"], default=TYPES["recall"])
    args = parser.parse_args()
    torch.set_num_threads(1)
    chosen = {"softmax", *args.types}
    types = {task: [name for name in TYPES[task] if name in chosen] for task in args.tasks}
    values = measured(args.out, types)
    commit, dirty = git_state()
    facts = {
        "kind": "caches",
        "schema": 1,
        "date": datetime.now(UTC).date().isoformat(),
        "text": list(TEXT),
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
