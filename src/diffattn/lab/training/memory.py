"""Refuse a run that does not fit into memory, before anything is allocated."""

import math

import torch

from diffattn.lab.training.config import RunConfig
from diffattn.lab.training.distributed import local_processes, micro_batch, num_processes, take_gpu
from diffattn.lab.training.planning.devices import DEVICES, GPU_HERE
from diffattn.lab.training.planning.plan import RunMemory
from diffattn.models.chunked_loss import MOST_LOGITS
from diffattn.models.memory import available_bytes, require_memory
from diffattn.models.twins import parameter_count

_PLENTY = 50
"""If the free memory is so many times the rough estimate, the run fits without a count."""


def require_run_memory(config: RunConfig, *, side_by_side: int = 1) -> None:
    """Refuse a run that does not fit into this process's GPU, or into the machine's memory with
    all processes of the launch.

    Runs that are far too large, or very small, are judged from sizes alone. For the others the
    memory of a step is counted as in ``diffattn plan``, which takes a second. Several runs may be
    ``side_by_side``, spread evenly over the GPUs.
    """
    train, local = config.train, local_processes()
    least = _least_bytes(config)
    take_gpu()
    on_gpu = torch.cuda.is_available()
    on_host = {
        # Two copies of the index of every window, while the order is made.
        "training order": local * 16 * train.num_steps * train.batch_sequences,
        "tokens of a step": local * 16 * train.batch_tokens,
    }
    if on_gpu:  # every process makes the weights on the CPU; with FSDP only the first does
        copies = 1 if config.engine.parallel == "fsdp" else local
        on_host["weights before they move to the GPU"] = copies * 4 * parameter_count(config.model)
    _require_room(least, on_host, side_by_side, on_gpu)
    room = torch.cuda.mem_get_info()[0] if on_gpu else available_bytes()
    estimate = side_by_side * local * (sum(least.values()) + _map_bytes(config))
    if room is not None and _PLENTY * estimate > room:
        memory = RunMemory(config, GPU_HERE if on_gpu else DEVICES["cpu"], num_processes())
        _require_room(memory.parts(micro_batch(train)), on_host, side_by_side, on_gpu)


def _require_room(
    on_device: dict[str, int], on_host: dict[str, int], side_by_side: int, on_gpu: bool
) -> None:
    if on_gpu:
        free = torch.cuda.mem_get_info()[0]
        each = math.ceil(side_by_side / torch.cuda.device_count())
        require_memory("training on the GPU", _multiples(on_device, each), available=free)
        on_device = {}
    in_main_memory = _multiples(on_device, local_processes()) | on_host
    require_memory("training", _multiples(in_main_memory, side_by_side))


def _least_bytes(config: RunConfig) -> dict[str, int]:
    """A lower bound on the bytes of a step in float32, on any device."""
    model = config.model
    tokens = config.train.seq_len * micro_batch(config.train)
    chunk = config.engine.loss_chunk_tokens or max(1, MOST_LOGITS // model.vocab_size)
    shards = config.engine.shards(num_processes())
    return {
        "weights, gradients and optimizer state": 4 * 4 * parameter_count(model) // shards,
        "logits": 2 * 4 * min(tokens, chunk) * model.vocab_size,  # and their gradients
        "activations": 4 * tokens * model.hidden_size * model.num_hidden_layers,
    }


def _map_bytes(config: RunConfig) -> int:
    """Bytes of queries, attention maps and feed-forward activations, if all were held at once."""
    model, micro = config.model, micro_batch(config.train)
    heads = max(kind.num_heads * kind.attention.query_maps for kind, _ in model.by_type())
    keys = config.train.seq_len * (micro if config.windows.apart else 1)
    widths = model.intermediate_size + heads * (keys + model.head_dim)
    return 4 * config.train.seq_len * micro * widths * model.num_hidden_layers


def _multiples(parts: dict[str, int], count: int) -> dict[str, int]:
    return {name: count * size for name, size in parts.items()}
