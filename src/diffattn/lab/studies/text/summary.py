"""From finished runs to the comparison's results, costs, example maps and plain words."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from diffattn.files.io import read_json, read_jsonl, write_json
from diffattn.lab.catalog.recipes.catalog import recipe
from diffattn.lab.studies.limits import SMALLEST_TESTED_HEADS, few_heads, spread
from diffattn.lab.studies.study_folder import recorded_costs
from diffattn.lab.studies.text.comparison import (
    ComparisonConfig,
    Sweep,
    best_rates,
    sweep_name,
    trial_name,
)
from diffattn.lab.studies.text.phase import phase_step
from diffattn.lab.studies.text.results import comparison_results
from diffattn.lab.studies.text.verdict import verdict
from diffattn.lab.studies.variants import VARIANTS
from diffattn.lab.training.prepare import PreparedData
from diffattn.models.loading import load_model
from diffattn.probes.attention_rows import example_maps

EXAMPLE_TOKENS = 48
# The papers' models see 10 billion tokens or more.
FEWEST_TESTED_TOKENS = 10_000_000_000
_ONE_RATE = "One learning rate is used for all types, tuned for none."
_CHOSEN_ELSEWHERE = {
    True: "Each type's learning rate is the one that the matched comparison of this scale chose.",
    False: "Each type's learning rate is the common one times the factor that the matched "
    "comparison of this scale chose for its own models.",
}
"""By whether these are the models that it compared."""
PHASE_GAIN = 1.0
"""Nats by which a model must beat bigram counts on repeated bigrams."""
_PHASE = (
    f"loss on repeated bigrams at least {PHASE_GAIN:g} nat below that of bigram counts on the same "
    "windows: what stood in the context is used"
)


def summarise(
    config: ComparisonConfig,
    sweeps: Mapping[str, Sweep],
    counts: Mapping[str, Any],
    data: PreparedData,
    folder: Path,
) -> None:
    """Write ``results.json``, ``costs.json`` and ``maps.json`` of a finished comparison.

    Args:
        config: The comparison.
        sweeps: Swept variant to its sweep; empty if there was none.
        counts: Count model to its loss and its loss by part.
        data: Its tokens.
        folder: Study folder with ``runs/``.

    Raises:
        CheckpointError: A run's records are missing or damaged.
    """
    costs = recorded_costs(folder / "runs", _run_names(config, sweeps))
    write_json(folder / "results.json", study_results(config, sweeps, counts, folder))
    write_json(folder / "costs.json", {"schema": 1, "runs": costs})
    write_json(folder / "maps.json", _maps(config, data, folder))


def study_results(
    config: ComparisonConfig,
    sweeps: Mapping[str, Sweep],
    counts: Mapping[str, Any],
    folder: Path,
) -> dict[str, Any]:
    """What ``results.json`` holds: everything that follows from the records of the runs.

    Args:
        config: The comparison.
        sweeps: Swept variant to its sweep; empty if there was none.
        counts: Count model to its loss and its loss by part.
        folder: Study folder with ``runs/``.

    Raises:
        CheckpointError: A run's records are missing or damaged.
    """
    names = _run_names(config, sweeps)
    runs = {name: read_json(folder / "runs" / name / "results.json") for name in names}
    # Few windows may repeat no bigram; their curves have no such part either.
    bigrams = counts["bigram"]["curve"]["parts"].get("repeated_bigram")
    threshold = None if bigrams is None else bigrams - PHASE_GAIN
    phases = {}
    for name in names:
        recorded = runs[name]["metrics"]
        rows = read_jsonl(folder / "runs" / name / "metrics.jsonl", recorded=recorded)
        phases[name] = None if threshold is None else phase_step(rows, threshold)
    results = comparison_results(config, sweeps, runs, phases)
    return results | {
        "count_models": counts,
        "phase": None if threshold is None else {"threshold": threshold, "what": _PHASE},
        "verdict": verdict(results),
        "statement": statement(config),
    }


def _run_names(config: ComparisonConfig, sweeps: Mapping[str, Sweep]) -> list[str]:
    """Runs that chose the rates, then those that count."""
    swept = [
        sweep_name(name, rate, config.sweep_seed)
        for name, sweep in sweeps.items()
        for rate, _ in sweep.tried
    ]
    swept += [member.config.name for member in config.whole_members(sweeps)]
    trials = config.trials(best_rates(config, sweeps))
    return swept + [member.config.name for member in trials]


def statement(config: ComparisonConfig) -> str:
    """What this scale can and cannot show, in plain words."""
    train = config.base.train
    tokens = train.num_steps * train.batch_tokens
    models = [
        VARIANTS[name].twin(config.base.model, config.match).config for name in config.variants
    ]
    heads, below = few_heads(models), []
    if heads is not None:
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
    whole = f" and the best {config.whole_rates} in whole runs" if config.whole_rates else ""
    rates = (
        f"Each type's learning rate was chosen by one rule from {len(config.learning_rates)} rates "
        f"or more, on another seed, in runs of {100 * config.sweep_share:g} % of the steps{whole}."
        if config.learning_rates
        else _rates_of_another(config)
    )
    fewer = min(len(config.seeds_of(name)) for name in config.variants)
    rest = (
        f" Ablations and matches have {fewer} where their table says so."
        if fewer < len(config.seeds)
        else ""
    )
    return f"{limits} {shows} {spread(len(config.seeds))}{rest} {rates}"


def _rates_of_another(config: ComparisonConfig) -> str:
    """What is true of rates that were not swept for; the factors stay when settings change."""
    if not config.rate_factors:
        return _ONE_RATE
    theirs = recipe(config.scale).resolved()
    as_there = config.base.resolved() == theirs and config.match == "params"
    return _CHOSEN_ELSEWHERE[as_there]


def _maps(config: ComparisonConfig, data: PreparedData, folder: Path) -> dict[str, Any]:
    """Maps of the middle layer's first head on the first validation tokens: chosen in advance.

    Those of an earlier call stay where the weights of their run are gone; without them there are
    none of that type.
    """
    path = folder / "maps.json"
    length = min(EXAMPLE_TOKENS, config.base.train.seq_len, data.validation.num_tokens)
    ids = torch.tensor(data.validation.tokens[:length].tolist())
    labels = _labels(data.tokenizer, ids)
    recorded = read_json(path) if path.exists() else {}
    earlier = recorded["layers"] if recorded.get("tokens") == labels else {}
    layer = config.base.model.num_hidden_layers // 2
    layers: dict[str, Any] = {}
    for name in config.variants:
        if VARIANTS[name].role not in ("baseline", "type"):
            continue
        run = trial_name(name, config.seeds[0])
        weights = folder / "runs" / run / "model"
        if not weights.exists():  # records are committed without
            if earlier.get(name, {}).get("run") == run:
                layers[name] = earlier[name]
            continue
        model, _ = load_model(str(weights))
        maps = example_maps(model, ids[None], layer=layer, head=0)
        entry: dict[str, Any] = {"run": run, "layer": layer, "head": 0}
        entry["map_1"] = _rounded(maps.map_1)
        if maps.map_2 is not None and maps.difference is not None:
            entry["map_2"] = _rounded(maps.map_2)
            entry["difference"] = _rounded(maps.difference)
            # Every row of the difference sums to 1 − λ; V2 has one λ per row, so give their mean.
            entry["lam"] = round(1.0 - float(maps.difference.sum(-1).mean()), 4)
        layers[name] = entry
    return {"schema": 1, "tokens": labels, "layers": layers}


def _rounded(x: torch.Tensor) -> list[list[float]]:
    return [[round(value, 4) for value in row] for row in x.tolist()]


def _labels(tokenizer: Any, ids: Sequence[int] | torch.Tensor) -> list[str]:
    return [tokenizer.decode([int(i)]) for i in ids]
