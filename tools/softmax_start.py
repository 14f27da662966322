"""Does a converted softmax model train on better than the softmax model itself?

For every seed a softmax model is trained, then trained on equally long in several ways, on the
same data in the same order:

``softmax``        as it is: the twin that every other way is compared with
``dex``            extended by DEX, with the same output at first
``diff_v2``        converted, with the same output at first
``diff_v2_gate``   the control: its heads get V2's gate 1 - λ but no second map
``diff``           converted to V1, whose head norm changes the output
``diff_plain``     converted to V1 without head norm, with the same output at first

The record holds the loss at the start of every way (the jump is its difference to the twin's),
the loss at the end, parameters, and the paired difference to the twin with its 95 % interval. Every
way, the twin too, takes the best of three learning rates on a seed of its own. The same command
again continues what was interrupted.

    PYTHONPATH=src python -m tools.softmax_start --out FOLDER --record FILE.json

With the recipe ``laptop`` a run takes about a minute on one CPU core; three seeds of six ways are
40 runs with those that choose rates.
"""

import argparse
import itertools
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import torch

from diffattn.files.io import read_jsonl, write_json
from diffattn.lab.catalog.recipes.catalog import plan
from diffattn.lab.records.run import git_state, hardware, package_versions
from diffattn.lab.stats.paired import paired_difference
from diffattn.lab.training.config import RunConfig
from diffattn.lab.training.initial import initial_config, initial_weights
from diffattn.lab.training.prepare import PreparedData, open_data, prepare_data
from diffattn.lab.training.run import train
from diffattn.lab.training.settings import apply_settings
from diffattn.models.conversion.convert import convert
from diffattn.models.twins import parameter_count

WAYS: dict[str, tuple[str | None, dict[str, Any]]] = {
    "softmax": (None, {}),
    "dex": ("dex", {}),
    "diff_v2": ("diff_v2", {}),
    "diff_v2_gate": ("gated_head", {}),
    "diff": ("diff", {}),
    "diff_plain": ("diff", {"head_norm": False}),
}
"""Attention type to convert to and its settings; ``None`` for the model as it is."""
_OTHER_ORDER = 1_000
"""Added to a seed for the second half of training, so that it meets its data in another order."""
RATES = (1 / 2, 1, 2)
"""Times the recipe's learning rate."""
SWEEP_SEED = 100


def continued(
    way: str, seed: int, rate: float, config: RunConfig, data: PreparedData, folder: Path
) -> dict[str, Any]:
    """Losses of one way of training on from the base model of a seed."""
    base = folder / f"seed{seed}-base" / "model"
    if not base.exists():
        first = replace(config, train=config.train.at(config.train.learning_rate, seed))
        train(first, data, base.parent, on_progress=shown(f"seed {seed} base", config))
    target, changes = WAYS[way]
    start = base
    if target is not None:
        start = folder / f"seed{seed}-{way}-start"
        if not start.exists():
            convert(str(base), target, start, changes=changes)
    model = initial_config(start)
    run = replace(
        config,
        name=way,
        model=model,
        train=config.train.at(rate, seed + _OTHER_ORDER),
        init=initial_weights(start, model),
    )
    place = folder / f"seed{seed}-{way}-lr{rate:g}"
    results = train(run, data, place, on_progress=shown(place.name, config))
    rows = [row for row in read_jsonl(place / "metrics.jsonl") if "validation_loss" in row]
    return {
        "seed": seed,
        "parameters": parameter_count(model),
        "start_loss": rows[0]["validation_loss"],
        "loss": results["validation_loss"],
    }


def shown(name: str, config: RunConfig) -> Any:
    """A line every tenth of a run."""
    every = max(1, config.train.num_steps // 10)

    def show(step: int, loss: float | None) -> None:
        if step % every == 0:
            note = "" if loss is None else f", loss {loss:.3f}"
            print(f"{name}: step {step}/{config.train.num_steps}{note}", flush=True)

    return show


def main() -> None:
    """Train every way of every seed and write the record."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, required=True, help="folder of the runs")
    parser.add_argument("--record", type=Path, required=True)
    parser.add_argument("--recipe", default="laptop")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--ways", nargs="+", choices=list(WAYS), default=list(WAYS))
    parser.add_argument("--set", nargs="*", default=[], metavar="KEY=VALUE")
    args = parser.parse_args()
    torch.set_num_threads(1)
    ways = ["softmax", *(way for way in args.ways if way != "softmax")]
    config = apply_settings(plan(args.recipe).config(), args.set)
    if config.model.attention_type != "softmax":
        parser.error(f"--recipe must be a softmax model's, got {args.recipe}")
    prepare_data(config.data, args.out / "data", on_message=print)
    data = open_data(args.out / "data", verify=False)
    rates: dict[str, dict[float, float]] = {way: {} for way in ways}
    for way, factor in itertools.product(ways, RATES):
        rate = config.train.learning_rate * factor
        rates[way][rate] = continued(way, SWEEP_SEED, rate, config, data, args.out)["loss"]
    chosen = {way: min(losses, key=losses.__getitem__) for way, losses in rates.items()}
    rows: dict[str, list[dict[str, Any]]] = {way: [] for way in ways}
    for seed, way in itertools.product(range(args.seeds), ways):
        rows[way].append(continued(way, seed, chosen[way], config, data, args.out))
    commit, dirty = git_state()
    jumps, differences = compared(rows, "start_loss"), compared(rows, "loss")
    record = {
        "kind": "softmax_start",
        "schema": 2,
        "date": datetime.now(UTC).date().isoformat(),
        "recipe": args.recipe,
        "settings": args.set,
        "steps": config.train.num_steps,
        "commit": commit,
        "dirty": dirty,
        "versions": package_versions(),
        "hardware": hardware(),
        "rates": {
            way: {f"{r:g}": loss for r, loss in tried.items()} for way, tried in rates.items()
        },
        "chosen": chosen,
        "ways": rows,
        "jump": jumps,
        "difference": differences,
    }
    write_json(args.record, record)
    for way, interval in differences.items():
        jump, end = jumps[way]["mean"], interval["mean"]
        print(f"{way}: jump {jump:+.4f}, at the end {end:+.4f} nats against softmax")


def compared(rows: dict[str, list[dict[str, Any]]], field: str) -> dict[str, dict[str, Any]]:
    """Every way's paired difference to the softmax twin, nats per token."""
    baseline = [row[field] for row in rows["softmax"]]
    intervals = {
        way: paired_difference([row[field] for row in of_way], baseline)
        for way, of_way in rows.items()
    }
    return {way: {"mean": x.mean, "low": x.low, "high": x.high} for way, x in intervals.items()}


if __name__ == "__main__":
    main()
