"""Shared DIFF over rank and λ_init together, and without its head norm, in half a minute a run.

``PYTHONPATH=src python -m tools.studies.shared_grid runs/shared-grid --record FILE`` chooses two
learning rates on one seed, trains three seeds of every model, continues what was interrupted, and
writes the numbers of ``docs/records/shared_grid.md``, which holds the question and the decision
rule, written before the first result. It takes about 15 minutes of one core.
"""

import argparse
import math
from collections.abc import Iterable
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from diffattn.files.io import read_json, read_jsonl, write_json
from diffattn.lab.catalog.models import BASELINE, FLOOR, RANK, RANK_WITHOUT_NORM, WITHOUT_NORM
from diffattn.lab.stats.spikes import stability
from diffattn.lab.studies.study import PlannedRun
from diffattn.lab.studies.text.comparison import ComparisonConfig, Sweep, comparison, try_name
from diffattn.lab.studies.workers import run_here, unfinished
from diffattn.lab.training.prepare import prepare_data

GRID = tuple(
    f"shared_diff_r{r}{end}" for r in (2, 8, 16) for end in ("", "_lambda_08", "_lambda_05")
)
RATES = (2e-3, 4e-3, 8e-3)
SETTINGS = (
    "model.hidden_size=64",
    "model.num_heads=4",
    "model.num_hidden_layers=2",
    "train.learning_rate=0.004",
    "train.num_steps=200",
    "train.batch_tokens=1024",
    "train.log_every=1",
    "train.evaluate_every=200",
    "train.evaluation_tokens=32768",
)


def grid() -> ComparisonConfig:
    """The settings of all runs: ``laptop`` at half its size, with a fifth of its tokens."""
    study = comparison("laptop", kind="rank", settings=SETTINGS)
    variants = (BASELINE, "diff", WITHOUT_NORM, *GRID, RANK_WITHOUT_NORM, FLOOR)
    return replace(study, variants=variants, whole_rates=len(RATES))


def tries(study: ComparisonConfig) -> list[PlannedRun]:
    """Whole runs on the sweep's seed: rank 8 with and without norm at every rate."""
    sweep = Sweep(tried=tuple((rate, None) for rate in RATES))
    return study.whole_runs(dict.fromkeys((RANK, RANK_WITHOUT_NORM), sweep))


def with_chosen_rates(study: ComparisonConfig, runs: Path) -> ComparisonConfig:
    """Give each model the rate at which rank 8, with or without norm as the model, ends lowest."""

    def loss(variant: str, rate: float) -> float:
        result = read_json(
            runs / try_name(variant, rate, study.sweep_seed, "whole") / "results.json"
        )
        return math.inf if result["validation_loss"] is None else result["validation_loss"]

    with_norm, without = (
        min(RATES, key=lambda rate: loss(variant, rate)) / study.base.train.learning_rate
        for variant in (RANK, RANK_WITHOUT_NORM)
    )
    factors = dict.fromkeys(study.variants, with_norm)
    factors |= dict.fromkeys((WITHOUT_NORM, RANK_WITHOUT_NORM), without)
    return replace(study, rate_factors=factors, whole_rates=0)


def _order(run: PlannedRun) -> tuple[bool, int]:
    """V1 last, which the grid can do without; then seed by seed."""
    return run.config.model.attention_type == "diff", run.config.train.seed


def measure(planned: Iterable[PlannedRun], runs: Path) -> dict[str, Any]:
    """Name of a run to its rate, its loss, and how steadily it trained."""
    measured = {}
    for run in planned:
        config = run.config
        folder = runs / config.name
        result = read_json(folder / "results.json")
        rows = [row for row in read_jsonl(folder / "metrics.jsonl") if "train_loss" in row]
        norms = [row["gradient_norm"] for row in rows]
        steady = stability(
            [row["train_loss"] for row in rows],
            norms,
            num_steps=config.train.num_steps,
            vocab_size=config.model.vocab_size,
            max_gradient_norm=config.train.max_grad_norm,
            validation_loss=result["validation_loss"],
        )
        measured[config.name] = {
            "rate": config.train.learning_rate,
            **asdict(steady),
            "largest_gradient_norm": max(norms),
        }
    return measured


def main() -> None:
    """Train what is left, then write the record."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("out", type=Path, help="folder of data and runs, continued if it exists")
    parser.add_argument("--record", type=Path, required=True, help="the numbers of the page")
    given = parser.parse_args()
    out, study = given.out.resolve(), grid()
    runs = out / "runs"

    def show(name: str, event: dict[str, object]) -> None:
        print(name, event, flush=True)

    data = prepare_data(study.base.data, out / "data", on_message=print)
    first = tries(study)
    run_here(unfinished(first, runs), data, runs, on_progress=show)
    study = with_chosen_rates(study, runs)
    planned = sorted(study.trials(study.base_rates()), key=_order)
    run_here(unfinished(planned, runs), data, runs, on_progress=show)
    write_json(given.record, {"schema": 1, "runs": measure([*first, *planned], runs)})


if __name__ == "__main__":
    main()
