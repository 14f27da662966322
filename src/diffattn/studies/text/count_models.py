"""What models that count reach on the tokens of a run."""

from typing import Any

import numpy as np

from diffattn.data.count_models import COUNT_MODELS, count_losses
from diffattn.data.tokens import TokenDataset
from diffattn.training.config import TrainConfig
from diffattn.training.ordered_trainer import training_order
from diffattn.training.prepare import PreparedData


def count_model_results(config: TrainConfig, data: PreparedData) -> dict[str, dict[str, Any]]:
    """Losses of unigrams, bigrams and bigrams with copies, counted on what a run reads.

    A window that the run reads again is counted once: reading it again tells nothing new.

    Args:
        config: Of the run: its steps, batch, window and data order.
        data: Its tokens.

    Returns:
        By model: ``loss`` on all validation windows, and ``parts``, by part, in nats per token.

    Raises:
        ConfigError: The run reads fewer than two windows.
    """
    train, validation = (
        TokenDataset(split, config.seq_len) for split in (data.train, data.validation)
    )
    read = _windows(train, sorted(set(training_order(train, config).indices)))
    held_out = _windows(validation, list(range(len(validation))))
    results = {}
    for name, model in COUNT_MODELS.items():
        losses = count_losses(model(read, train.packed.metadata["vocab_size"]), held_out)
        parts = {part: entry["loss"] for part, entry in losses.parts().items()}
        results[name] = {"loss": losses.loss, "parts": parts}
    return results


def _windows(dataset: TokenDataset, indices: list[int]) -> np.ndarray:
    """Windows of a dataset, int64 ``[n, T]``."""
    return np.stack([dataset[index]["input_ids"].numpy() for index in indices])
