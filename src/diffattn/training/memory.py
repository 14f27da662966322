"""Whether a run fits into memory, estimated before anything is allocated."""

import torch

from diffattn.models.accounting import parameter_count
from diffattn.models.memory import require_memory
from diffattn.training.config import RunConfig
from diffattn.training.distributed import micro_batch, num_processes

_TRAINED_BYTES = 16
"""Per parameter: the weight, its gradient and AdamW's two moments, in float32."""
_LOGIT_BYTES = 8
"""Per token and entry of the vocabulary: the logit and its gradient."""
_ORDER_BYTES = 40
"""Per window of the training order: an entry of a list, and the number that it refers to."""


def require_run_memory(config: RunConfig, *, side_by_side: int = 1) -> None:
    """Refuse a run that no memory holds, by a lower bound of what it allocates.

    Args:
        config: Of the run.
        side_by_side: Runs like this one at the same time, on one device.

    Raises:
        ConfigError: It does not fit; says how much is needed, what for, and how much there is. Or
            its batch cannot be shared out to the processes of the launch.
    """
    model, train = config.model, config.train
    tokens = train.seq_len * micro_batch(train)
    chunk = config.engine.loss_chunk_tokens
    shards = num_processes() if config.engine.parallel == "fsdp" else 1
    on_device = {
        "weights, gradients and optimizer state": _TRAINED_BYTES * parameter_count(model) // shards,
        "logits": _LOGIT_BYTES * min(tokens, chunk or tokens) * model.vocab_size,
        "activations": 4 * tokens * model.hidden_size * model.num_hidden_layers,
    }
    on_host = {
        "training order": _ORDER_BYTES * train.num_steps * train.batch_sequences,
        "tokens of a step": 16 * train.batch_tokens,
    }
    if torch.cuda.is_available():
        where = "training on the GPU"
        free = torch.cuda.mem_get_info()[0]
        require_memory(where, _times(on_device, side_by_side), available=free)
        on_device = {}
    require_memory("training", _times(on_device | on_host, side_by_side))


def _times(parts: dict[str, int], count: int) -> dict[str, int]:
    return {name: count * size for name, size in parts.items()}
