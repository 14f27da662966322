"""Fit n-gram count models to what a run reads; find the step at which a run begins to copy."""

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from diffattn.files.io import read_json, write_json
from diffattn.lab.data.count_models import COUNT_MODELS, CountModel, count_losses
from diffattn.lab.data.tokens import TokenDataset
from diffattn.lab.studies.study import OnMessage
from diffattn.lab.studies.text.comparison import ComparisonConfig
from diffattn.lab.training.config import TrainConfig
from diffattn.lab.training.loop.data_order import curve_windows, training_order
from diffattn.lab.training.prepare import PreparedData

_SCHEMA = 2
PHASE_GAIN = 1.0
"""Nats by which a model must beat the bigram model on repeated bigrams to have begun to copy."""
PHASE_RULE = (
    f"loss on repeated bigrams at least {PHASE_GAIN:g} nat below that of bigram counts on the same "
    "windows: what stood in the context is used"
)


def read_or_count(
    config: ComparisonConfig, data: PreparedData, path: Path, on_message: OnMessage
) -> dict[str, Any]:
    """Read ``counts.json``; or fit the models to what the first seed's runs read, and write it."""
    if not path.exists() or read_json(path)["schema"] != _SCHEMA:
        on_message("fitting the n-gram count models")
        seed = config.seeds[0]
        train = replace(config.base.train, seed=seed, data_seed=seed)
        write_json(path, {"schema": _SCHEMA, "models": count_model_results(train, data)})
    models: dict[str, Any] = read_json(path)["models"]
    return models


def count_model_results(config: TrainConfig, data: PreparedData) -> dict[str, dict[str, Any]]:
    """Losses of the unigram, bigram and bigram-with-copies models, fitted to what a run reads.

    A window that the run reads again is counted once.

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


def phase_step(rows: Sequence[Mapping[str, Any]], threshold: float) -> int | None:
    """The step at which a run begins to copy: the first of two evaluations in a row whose loss on
    repeated bigrams is below ``threshold``. Two, so that one lucky evaluation does not count.

    Args:
        rows: Of the run's ``metrics.jsonl``.
        threshold: The bigram model's loss minus :data:`PHASE_GAIN`, in nats.
    """
    measured = [
        (row["step"], row["validation_parts"]["repeated_bigram"])
        for row in rows
        if "repeated_bigram" in row.get("validation_parts", {})
    ]
    for (step, first), (_, second) in itertools.pairwise(measured):
        if max(first, second) < threshold:
            return int(step)
    return None
