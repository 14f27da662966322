"""From finished runs to the results of a comparison, its count models, maps and limits in words."""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from diffattn.errors import DiffAttnError
from diffattn.files.io import read_json, write_json
from diffattn.lab.catalog.models import BASELINE, FLOOR, VARIANTS
from diffattn.lab.catalog.recipes.catalog import recipe
from diffattn.lab.catalog.recipes.plan import TIED_START
from diffattn.lab.data.count_models import COUNT_MODELS, CountModel, count_losses
from diffattn.lab.data.tokens import TokenDataset
from diffattn.lab.records.text_results import TextResults
from diffattn.lab.report.page.wording import listing
from diffattn.lab.studies.limits import SMALLEST_TESTED_HEADS, few_heads, maps_of, spread
from diffattn.lab.studies.study import OnMessage, Results, Runs
from diffattn.lab.studies.text.comparison import ComparisonConfig, best_rates, trial_name
from diffattn.lab.studies.text.results import comparison_results, crossing, loss_curve, phase_step
from diffattn.lab.studies.text.verdict import verdict
from diffattn.lab.training.config import TrainConfig
from diffattn.lab.training.prepare import PreparedData
from diffattn.lab.training.settings import apply_settings
from diffattn.lab.training.trainer import curve_windows, training_order
from diffattn.models.loading import load_model
from diffattn.probes.attention_rows import attention_rows

PHASE_GAIN = 1.0
"""Nats by which a model must beat the bigram model on repeated bigrams to have begun to copy."""
PHASE_RULE = (
    f"loss on repeated bigrams at least {PHASE_GAIN:g} nat below that of bigram counts on the same "
    "windows: what stood in the context is used"
)


def judge_comparison(
    config: ComparisonConfig, runs: Runs, data: PreparedData | None, on_message: OnMessage
) -> TextResults:
    """Judge a finished comparison; writes ``counts.json`` and ``maps.json``."""
    assert data is not None, "a comparison reads text"
    folder = runs.folder.parent
    require_losses(config, runs.results, on_message)
    counts = read_or_count(config, data, folder / "counts.json", on_message)
    on_message("comparing")
    write_json(folder / "maps.json", _example_maps(config, data, folder))
    return study_results(config, runs, counts)


def _example_maps(config: ComparisonConfig, data: PreparedData, folder: Path) -> dict[str, Any]:
    """Maps of the middle layer's first head on the first validation tokens, for the first seed.

    A run without weights keeps its recorded maps, if there are any.
    """
    path = folder / "maps.json"
    length = min(48, config.base.train.seq_len, data.validation.num_tokens)
    ids = torch.tensor(data.validation.tokens[:length].tolist())
    labels = [data.tokenizer.decode([token]) for token in ids.tolist()]
    recorded = read_json(path) if path.exists() else {}
    earlier = recorded["layers"] if recorded.get("tokens") == labels else {}
    layers: dict[str, Any] = {}
    for name in config.variants:
        if VARIANTS[name].role not in ("baseline", "type"):
            continue
        run = trial_name(name, config.seeds[0])
        weights = folder / "runs" / run / "model"
        if weights.exists():
            layer = config.base.model.num_hidden_layers // 2
            rows = attention_rows(load_model(str(weights))[0], ids[None])[layer]
            layers[name] = {"run": run, "layer": layer, "head": 0} | maps_of(rows, 0)
        elif earlier.get(name, {}).get("run") == run:  # records are committed without weights
            layers[name] = earlier[name]
    return {"schema": 1, "tokens": labels, "layers": layers}


def require_losses(config: ComparisonConfig, results: Results, on_message: OnMessage) -> None:
    """Refuse to compare if a trial has diverged; in rows, only the Transformer and no attention."""
    trials = config.trials(best_rates(config, config.sweeps(results)))
    names = [run.config.name for run in trials]
    lost = {
        name: f"{name} (not finite at step {results[name]['diverged_step']})"
        for name in names
        if results[name]["validation_loss"] is None
    }
    if config.kind != "text":
        vital = {trial_name(name, seed) for name in (BASELINE, FLOOR) for seed in config.seeds}
        for name in sorted(set(lost) - vital):
            on_message(f"{lost.pop(name)}: its rows are not compared")
    if not lost:
        return
    runs = listing(lost.values())
    # A swept learning rate cannot be set by the user.
    is_swept = bool(config.learning_rates)
    change = "guard.not_finite=roll_back" if is_swept else "a lower train.learning_rate"
    raise DiffAttnError(
        f"reproduce: every run that counts must end with a loss, got none from {runs}. The others "
        f"are kept. Choose another --out and --set {change}."
    )


def study_results(config: ComparisonConfig, runs: Runs, counts: Mapping[str, Any]) -> TextResults:
    """Results that follow from the records of the runs and from n-gram ``counts``."""
    # In a few windows no bigram may repeat; then no curve has that part.
    bigrams = counts["bigram"]["curve"]["parts"].get("repeated_bigram")
    threshold = None if bigrams is None else bigrams - PHASE_GAIN
    rows_of = runs.rows("metrics")
    phases: dict[str, int | None] = dict.fromkeys(rows_of)
    starts: dict[str, float | None] = dict.fromkeys(rows_of)
    if threshold is not None:
        for name, rows in rows_of.items():
            curve = loss_curve(rows, "repeated_bigram")
            phases[name] = phase_step(curve, threshold)
            if phases[name] is not None:
                starts[name] = crossing(curve, threshold)
    curves = {name: loss_curve(rows) for name, rows in rows_of.items()}
    results = comparison_results(
        config, config.sweeps(runs.results), runs.results, phases, curves, starts
    )
    return {
        **results,
        "count_models": dict(counts),
        "phase": None if threshold is None else {"threshold": threshold, "what": PHASE_RULE},
        "verdict": verdict(results, counts),
        "statement": statement(config),
    }


def statement(config: ComparisonConfig) -> str:
    """Name the limits of a comparison: heads, tokens, seeds and learning rates."""
    tokens = config.base.train.num_steps * config.base.train.batch_tokens
    heads, below = few_heads(twin.config for twin in config.twins.values()), []
    if heads is not None:
        below.append(f"{heads} DIFF heads (the papers use {SMALLEST_TESTED_HEADS} or more)")
    if tokens < 10_000_000_000:
        below.append(f"{tokens:,} training tokens per run (the papers use 10 billion or more)")
    limits = (
        f"This comparison is below the tested range of the papers: {' and '.join(below)}. It "
        "cannot confirm or refute their claims about large models."
        if below
        else "Heads and tokens lie in the range the papers test."
    )
    fewer, rest = min(len(config.seeds_of(name)) for name in config.variants), ""
    if fewer < len(config.seeds):
        rest = f" Ablations and matches have {fewer} where their table says so."
    return (
        f"{limits} It shows how these implementations train side by side on the same tokens, and "
        f"what they cost here. {spread(len(config.seeds))}{rest} {_rates_statement(config)}"
    )


def _rates_statement(config: ComparisonConfig) -> str:
    if config.learning_rates:
        whole = f" and the best {config.whole_rates} in whole runs" if config.whole_rates else ""
        return (
            "Each type's learning rate was chosen by one rule from "
            f"{len(config.learning_rates)} rates or more, on another seed, in runs of "
            f"{100 * config.sweep_share:g} % of the steps{whole}."
        )
    if not config.rate_factors:
        return "One learning rate is used for all types, tuned for none."
    published = apply_settings(recipe(config.scale), TIED_START)
    if config.base.resolved() == published.resolved() and config.match == "params":
        return (
            "Each type's learning rate is the one that the matched comparison of this scale chose."
        )
    return (
        "Each type's learning rate is the common one times the factor that the matched "
        "comparison of this scale chose for its own models."
    )


def read_or_count(
    config: ComparisonConfig, data: PreparedData, path: Path, on_message: OnMessage
) -> dict[str, Any]:
    """Read ``counts.json``; or fit the models to what the first seed's runs read, and write it."""
    if not path.exists():
        on_message("fitting the n-gram count models")
        seed = config.seeds[0]
        train = replace(config.base.train, seed=seed, data_seed=seed)
        write_json(path, {"schema": 2, "models": count_model_results(train, data)})
    models: dict[str, Any] = read_json(path)["models"]
    return models


def count_model_results(config: TrainConfig, data: PreparedData) -> dict[str, dict[str, Any]]:
    """Losses of the unigram, bigram and bigram-with-copies models, fitted to what a run reads once.

    Returns:
        Model -> ``loss`` on all validation windows and ``parts``, both in nats per token; ``curve``
        has both on those validation windows on which a run is evaluated while it trains.
    """
    train, validation = (
        TokenDataset(split, config.seq_len) for split in (data.train, data.validation)
    )
    seen = _windows(train, sorted(set(training_order(train, config).indices)))
    unseen = _windows(validation, list(range(len(validation))))
    curve = unseen[list(curve_windows(validation, config).indices)]
    results = {}
    for name, model in COUNT_MODELS.items():
        fitted = model(seen, train.packed.metadata["vocab_size"])
        results[name] = _losses(fitted, unseen) | {"curve": _losses(fitted, curve)}
    return results


def _losses(model: CountModel, windows: np.ndarray) -> dict[str, Any]:
    losses = count_losses(model, windows)
    parts = {part: entry["loss"] for part, entry in losses.parts().items()}
    return {"loss": losses.loss, "parts": parts}


def _windows(dataset: TokenDataset, indices: list[int]) -> np.ndarray:
    return np.stack([dataset[index]["input_ids"].numpy() for index in indices])
