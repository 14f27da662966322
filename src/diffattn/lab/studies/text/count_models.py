"""What models that count reach on the tokens of a run."""

from typing import Any

import numpy as np

from diffattn.lab.data.count_models import COUNT_MODELS, CountModel, count_losses
from diffattn.lab.data.tokens import TokenDataset
from diffattn.lab.training.config import TrainConfig
from diffattn.lab.training.loop.data_order import curve_windows, training_order
from diffattn.lab.training.prepare import PreparedData


def count_model_results(config: TrainConfig, data: PreparedData) -> dict[str, dict[str, Any]]:
    """Losses of unigrams, bigrams and bigrams with copies, counted on what a run reads.

    A window that the run reads again is counted once: reading it again tells nothing new.

    Args:
        config: Of the run: its steps, batch, window and data order.
        data: Its tokens.

    Returns:
        By model: ``loss`` on all validation windows and ``parts``, by part, in nats per token, and
        under ``curve`` both again on the windows that a run is evaluated on while it trains.

    Raises:
        ConfigError: The run reads fewer than two windows.
    """
    train, validation = (
        TokenDataset(split, config.seq_len) for split in (data.train, data.validation)
    )
    read = _windows(train, sorted(set(training_order(train, config).indices)))
    held_out = _windows(validation, list(range(len(validation))))
    of_curves = held_out[list(curve_windows(validation, config).indices)]
    results = {}
    for name, model in COUNT_MODELS.items():
        counted = model(read, train.packed.metadata["vocab_size"])
        results[name] = _losses(counted, held_out) | {"curve": _losses(counted, of_curves)}
    return results


def _losses(model: CountModel, windows: np.ndarray) -> dict[str, Any]:
    """``loss`` and ``parts``."""
    losses = count_losses(model, windows)
    parts = {part: entry["loss"] for part, entry in losses.parts().items()}
    return {"loss": losses.loss, "parts": parts}


def _windows(dataset: TokenDataset, indices: list[int]) -> np.ndarray:
    """Windows of a dataset, int64 ``[n, T]``."""
    return np.stack([dataset[index]["input_ids"].numpy() for index in indices])
