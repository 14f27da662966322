"""From finished runs to the comparison's results, costs, example maps and plain words."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from diffattn.errors import DiffAttnError
from diffattn.files.io import read_json, write_json
from diffattn.lab.catalog.models import BASELINE, FLOOR, VARIANTS
from diffattn.lab.catalog.recipes.catalog import recipe
from diffattn.lab.report.page.wording import listing
from diffattn.lab.studies.limits import SMALLEST_TESTED_HEADS, few_heads, spread
from diffattn.lab.studies.study import OnMessage, Results, Runs
from diffattn.lab.studies.text.comparison import ComparisonConfig, best_rates, trial_name
from diffattn.lab.studies.text.count_models import count_model_results
from diffattn.lab.studies.text.phase import phase_step
from diffattn.lab.studies.text.results import comparison_results
from diffattn.lab.studies.text.verdict import verdict
from diffattn.lab.training.prepare import PreparedData
from diffattn.models.loading import load_model
from diffattn.probes.attention_rows import attention_rows

EXAMPLE_TOKENS = 48
_COUNTS_SCHEMA = 2
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


def judge_comparison(
    config: ComparisonConfig, runs: Runs, data: PreparedData, on_message: OnMessage
) -> dict[str, Any]:
    """The ``results.json`` of a finished comparison; writes ``counts.json`` and ``maps.json``.

    Args:
        config: The comparison.
        runs: All runs.
        data: Their tokens.
        on_message: Given one line per stage.

    Raises:
        CheckpointError: A run's records are damaged.
        DiffAttnError: A run that counts diverged.
    """
    folder = runs.folder.parent
    require_losses(config, runs.results, on_message)
    counts = _counts(config, data, folder / "counts.json", on_message)
    on_message("comparing")
    write_json(folder / "maps.json", _maps(config, data, folder))
    return study_results(config, runs, counts)


def require_losses(config: ComparisonConfig, results: Results, on_message: OnMessage) -> None:
    """Refuse to compare where a run that counts has diverged.

    Of a study of rows these are softmax attention and no attention: that another diverges is what
    its row then says.

    Raises:
        DiffAttnError: A run that counts diverged.
    """
    trials = config.trials(best_rates(config, config.sweeps(results)))
    names = [member.config.name for member in trials]
    lost = [name for name in names if results[name]["validation_loss"] is None]
    steps = {name: results[name]["diverged_step"] for name in lost}
    if config.kind != "text":
        vital = {trial_name(name, seed) for name in (BASELINE, FLOOR) for seed in config.seeds}
        for name in sorted(set(lost) - vital):
            on_message(f"{name} was not finite at step {steps[name]}: its rows are not compared")
        lost = [name for name in lost if name in vital]
    if not lost:
        return
    runs = listing(f"{name} (not finite at step {steps[name]})" for name in lost)
    # A rate that was swept for is not set.
    is_swept = bool(config.learning_rates)
    change = "guard.not_finite=roll_back" if is_swept else "a lower train.learning_rate"
    raise DiffAttnError(
        f"reproduce: every run that counts must end with a loss, got none from {runs}. The others "
        f"are kept. Choose another --out and --set {change}."
    )


def _counts(
    config: ComparisonConfig, data: PreparedData, path: Path, on_message: OnMessage
) -> dict[str, Any]:
    """Losses of models that only count, on the tokens that the runs of the first seed read."""
    if not path.exists() or read_json(path)["schema"] != _COUNTS_SCHEMA:
        on_message("counting what unigrams, bigrams and copies predict")
        seed = config.seeds[0]
        train = replace(config.base.train, seed=seed, data_seed=seed)
        write_json(path, {"schema": _COUNTS_SCHEMA, "models": count_model_results(train, data)})
    models: dict[str, Any] = read_json(path)["models"]
    return models


def study_results(
    config: ComparisonConfig, runs: Runs, counts: Mapping[str, Any]
) -> dict[str, Any]:
    """What ``results.json`` holds: everything that follows from the records of the runs.

    Args:
        config: The comparison.
        runs: All runs.
        counts: Count model to its loss and its loss by part.

    Raises:
        CheckpointError: A run's records are damaged.
    """
    # Few windows may repeat no bigram; their curves have no such part either.
    bigrams = counts["bigram"]["curve"]["parts"].get("repeated_bigram")
    threshold = None if bigrams is None else bigrams - PHASE_GAIN
    phases = {
        name: None if threshold is None else phase_step(rows, threshold)
        for name, rows in runs.rows("metrics").items()
    }
    results = comparison_results(config, config.sweeps(runs.results), runs.results, phases)
    return results | {
        "count_models": counts,
        "phase": None if threshold is None else {"threshold": threshold, "what": _PHASE},
        "verdict": verdict(results),
        "statement": statement(config),
    }


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
        rows = attention_rows(model, ids[None])[layer]
        first, *second = rows.maps[0]
        entry: dict[str, Any] = {"run": run, "layer": layer, "head": 0, "map_1": _rounded(first)}
        if second:
            entry["map_2"] = _rounded(second[0])
            entry["difference"] = _rounded(rows.signed[0])
            # Every row of the difference sums to 1 − λ; V2 has one λ per row, so give their mean.
            entry["lam"] = round(1.0 - float(rows.signed[0].sum(-1).mean()), 4)
        layers[name] = entry
    return {"schema": 1, "tokens": labels, "layers": layers}


def _rounded(x: torch.Tensor) -> list[list[float]]:
    return [[round(value, 4) for value in row] for row in x.tolist()]


def _labels(tokenizer: Any, ids: Sequence[int] | torch.Tensor) -> list[str]:
    return [tokenizer.decode([int(i)]) for i in ids]
