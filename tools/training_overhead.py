"""What does training through ``transformers.Trainer`` cost beside a bare loop?

Both make the same steps of the laptop model: same batches in the same order, AdamW, clipping and
schedule. ``watched`` is the trainer with everything that a run of ours adds to it. Processor time
of one thread per step, without the first steps, each way in turn within a round and the order
turned from round to round; medians over rounds, and a bootstrap interval of the ratio. Evaluations
and checkpoints are left out on both sides. What the trainer waits for data is the wall time between
two steps beside that of a step.

    PYTHONPATH=src python -m tools.training_overhead --out FILE.json

The goals are 5 % of the bare loop's tokens per second and 1 % of a step's time.
"""

import argparse
import shutil
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import torch
from transformers import PrinterCallback, TrainerCallback, set_seed

from diffattn.files.io import write_json
from diffattn.lab.catalog.recipes.catalog import plan
from diffattn.lab.data.tokens import TokenDataset
from diffattn.lab.records.run import git_state, hardware, package_versions
from diffattn.lab.training.callbacks import CostCallback, MetricsCallback
from diffattn.lab.training.config import RunConfig
from diffattn.lab.training.loop.data_order import first_windows, training_order
from diffattn.lab.training.loop.schedule import optimizer_and_scheduler
from diffattn.lab.training.loop.trainer import RunTrainer, training_arguments
from diffattn.lab.training.monitoring.monitor import Monitor
from diffattn.lab.training.prepare import PreparedData, prepare_data
from diffattn.models.modeling_diff_transformer import DiffTransformerForCausalLM

WARM_UP = 3
GOALS = {"overhead": 0.05, "waiting": 0.01}


@dataclass
class Clock:
    """Processor time of whole steps, and how long data was waited for."""

    ends: list[float] = field(default_factory=list)
    step_seconds: list[float] = field(default_factory=list)
    gaps: list[float] = field(default_factory=list)

    def seconds(self) -> float:
        """Of one step, from the end of one to the end of the next."""
        return (self.ends[-1] - self.ends[WARM_UP]) / (len(self.ends) - 1 - WARM_UP)


class Watch(TrainerCallback):
    """Reads both clocks at the borders of a step."""

    def __init__(self, clock: Clock) -> None:
        self.clock, self.began, self.ended = clock, 0.0, 0.0

    def on_step_begin(self, *args: Any, **kwargs: Any) -> None:
        """After the batch has been read."""
        self.began = time.perf_counter()
        if self.ended:
            self.clock.gaps.append(self.began - self.ended)

    def on_step_end(self, *args: Any, **kwargs: Any) -> None:
        """After the update."""
        self.ended = time.perf_counter()
        self.clock.step_seconds.append(self.ended - self.began)
        self.clock.ends.append(time.process_time())


def bare(config: RunConfig, data: PreparedData, folder: Path) -> Clock:
    """The loop that anyone would write."""
    set_seed(config.train.seed)
    model = DiffTransformerForCausalLM(config.model).train()
    optimizer, scheduler = optimizer_and_scheduler(model, config.train)
    windows = _windows(config, data)
    size, clock = config.train.batch_sequences, Clock()
    for step in range(config.train.num_steps):
        items = [windows[i] for i in range(step * size, (step + 1) * size)]
        batch = {name: torch.stack([item[name] for item in items]) for name in items[0]}
        model(**batch).loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), config.train.max_grad_norm)
        optimizer.step()
        scheduler.step()
        optimizer.zero_grad()
        clock.ends.append(time.process_time())
    return clock


def through_trainer(config: RunConfig, data: PreparedData, folder: Path) -> Clock:
    """``transformers.Trainer`` with our callbacks, as ``diffattn train`` runs it."""
    set_seed(config.train.seed)
    model = DiffTransformerForCausalLM(config.model)
    optimizer = optimizer_and_scheduler(model, config.train)
    arguments = training_arguments(
        config.train, folder / "checkpoints", fresh=False, engine=config.engine
    )
    arguments.set_evaluate(strategy="no")
    arguments.set_save(strategy="no")
    clock = Clock()
    validation = TokenDataset(data.validation, config.train.seq_len)
    probe = first_windows(validation, 1)
    metrics = MetricsCallback(folder, config.train, probe, lambda step, loss: None)
    monitor = Monitor(folder, config, print)
    trainer = RunTrainer(
        model=model,
        args=arguments,
        train_dataset=_windows(config, data),
        optimizers=optimizer,
        callbacks=[*monitor.first_callbacks, metrics, CostCallback(folder, "", config.train)],
    )
    trainer.remove_callback(PrinterCallback)
    monitor.attach(trainer, metrics, probe)
    trainer.add_callback(Watch(clock))
    trainer.train_from(None)
    return clock


def _windows(config: RunConfig, data: PreparedData) -> Any:
    return training_order(TokenDataset(data.train, config.train.seq_len), config.train)


def measure(args: Any, home: Path) -> dict[str, Any]:
    """All rounds, and what they say."""
    config = plan("laptop").config()
    train = replace(
        config.train, num_steps=args.steps, warmup_steps=1, log_every=10,
        evaluate_every=args.steps,
    )  # fmt: skip
    config = replace(config, model=config.model.twin("diff").config, train=train)
    data = prepare_data(replace(config.data, source=args.source), home / "data")
    ways: dict[str, Callable[..., Clock]] = {"bare": bare, "trainer": through_trainer}
    seconds: dict[str, list[float]] = {name: [] for name in ways}
    waiting: list[float] = []
    for number in range(args.rounds):
        for name in list(ways) if number % 2 == 0 else reversed(ways):
            folder = home / f"{name}-{number}"
            folder.mkdir()
            clock = ways[name](config, data, folder)
            shutil.rmtree(folder)
            seconds[name].append(clock.seconds())
            if clock.gaps:
                waiting.append(median(clock.gaps) / median(clock.step_seconds))
    ratios = np.array(seconds["trainer"]) / np.array(seconds["bare"])
    draws = np.random.default_rng(0).choice(ratios, (10_000, len(ratios)))
    low, high = np.quantile(np.median(draws, axis=1), [0.025, 0.975])
    tokens = config.train.batch_tokens
    return {
        "tokens_per_second": {name: tokens / median(values) for name, values in seconds.items()},
        "overhead": {
            "median": float(np.median(ratios) - 1),
            "interval": [float(low - 1), float(high - 1)],
        },
        "waiting_share": median(waiting),
        "seconds": seconds,
        "goals": GOALS,
    }


def main() -> None:
    """Measure, print one line, write a record."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--source", default="python", help="text, as data.source")
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--steps", type=int, default=40)
    args = parser.parse_args()
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as home:
        results = measure(args, Path(home))
    commit, dirty = git_state()
    record = {
        "kind": "training_overhead",
        "schema": 1,
        "date": datetime.now(UTC).date().isoformat(),
        "steps": args.steps,
        "rounds": args.rounds,
        "commit": commit,
        "dirty": dirty,
        "versions": package_versions(),
        "hardware": hardware() | {"threads": 1, "clock": "processor time"},
        **results,
    }
    write_json(args.out, record)
    low, high = results["overhead"]["interval"]
    print(
        f"overhead {results['overhead']['median']:.1%} ({low:.1%} to {high:.1%}), "
        f"waiting for data {results['waiting_share']:.2%} of a step"
    )


if __name__ == "__main__":
    main()
