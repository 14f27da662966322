"""Find settings with which a run fits on given devices, and refuse a run that does not fit here."""

import json
import math
from collections.abc import Collection, Iterable, Iterator
from dataclasses import replace
from operator import attrgetter
from typing import Any

import torch

from diffattn.errors import ConfigError
from diffattn.lab.training.config import RunConfig
from diffattn.lab.training.distributed import local_processes, micro_batch, num_processes, take_gpu
from diffattn.lab.training.planning.devices import DEVICES, GPU_HERE, Device
from diffattn.lab.training.planning.plan import Plan, RunMemory, make_plan
from diffattn.models.chunked_loss import MOST_LOGITS
from diffattn.models.memory import available_bytes, require_memory
from diffattn.models.twins import parameter_count

SEARCHED = (
    "train.micro_batch_sequences",
    "engine.parallel",
    "engine.activation_checkpointing",
    "engine.loss_chunk_tokens",
)


def best_plan(
    config: RunConfig,
    device: Device,
    *,
    devices: int = 1,
    fixed: Collection[str] = (),
    **options: Any,
) -> tuple[RunConfig, Plan] | None:
    """The first plan that fits, with its configuration; ``None`` if none does.

    Settings that cost least time are tried first: all logits at once before chunks, then whole
    copies before shards, and last activations that are computed again. The micro batch is the
    recipe's, or the largest below it that fits. Plans below 4,096 tokens per pass come last.
    ``fixed`` names those of :data:`SEARCHED` that stay as they are.
    """
    train = config.train
    is_fixed = "train.micro_batch_sequences" in fixed
    if not is_fixed:
        config = replace(config, train=replace(train, micro_batch_sequences=None))
    share = config.train.micro_batch(devices, f"plan with --gpus {devices}")
    most = share if is_fixed else min(train.micro_batch_sequences or share, share)
    best: RunConfig | None = None
    for candidate in _candidates(config, devices, fixed):
        memory = RunMemory(candidate, device, devices)
        micro = most * memory.fits(most) if is_fixed else memory.largest_micro_batch(most)
        if not micro:
            continue
        if micro != share or train.micro_batch_sequences is not None:
            candidate = replace(candidate, train=replace(train, micro_batch_sequences=micro))
        # The speed was measured at 4,096 tokens per pass.
        if micro * train.seq_len >= min(4_096, most * train.seq_len):
            best = candidate
            break
        best = best or candidate
    return None if best is None else (best, make_plan(best, device, devices=devices, **options))


def _candidates(config: RunConfig, devices: int, fixed: Collection[str]) -> Iterator[RunConfig]:
    engine = config.engine

    def values(name: str, *tried: Any) -> tuple[Any, ...]:
        return (getattr(engine, name),) if f"engine.{name}" in fixed else tried

    parallel = ("ddp", "fsdp") if devices > 1 else ("ddp",)
    for again in values("activation_checkpointing", False, True):
        for kind in values("parallel", *parallel):
            for chunk in values("loss_chunk_tokens", None, 1_024):
                changes = {"activation_checkpointing": again, "parallel": kind}
                yield replace(config, engine=replace(engine, loss_chunk_tokens=chunk, **changes))


def twin_of(config: RunConfig) -> RunConfig | None:
    """The run with softmax attention and equally many parameters; a softmax run gets DIFF V1.
    ``None``: the model has no such twin, for example because it has an odd number of heads."""
    kind = "diff" if config.model.attention_type == "softmax" else "softmax"
    try:
        return replace(config, model=config.model.twin(kind).config)
    except ConfigError:
        return None


def changes_of(recipe: RunConfig, planned: RunConfig, given: Iterable[str]) -> list[str]:
    """Searched settings, as ``KEY=VALUE``, that a plan changes and the changes ``given`` do not."""
    keys = {change.partition("=")[0] for change in given}
    changes = []
    for name in SEARCHED:
        value = attrgetter(name)(planned)
        if name not in keys and value != attrgetter(name)(recipe):
            changes.append(f"{name}={value if isinstance(value, str) else json.dumps(value)}")
    return changes


def enough_devices(
    config: RunConfig, device: Device, devices: int, fixed: Collection[str]
) -> list[tuple[Device, int]]:
    """Find devices for a run that does not fit, and their count: more of the same kind, and as
    many larger ones. A run on CPUs gets GPUs, from one H100."""
    kind, least = (device, 2 * devices) if device.memory_bytes else (DEVICES["h100"], 1)
    larger = sorted(DEVICES.values(), key=lambda row: row.memory_bytes or 0)
    more = [(kind, least * 2**n) for n in range(6)]
    others = [
        (row, devices) for row in larger if (row.memory_bytes or 0) > (kind.memory_bytes or 0)
    ]

    train, is_fsdp = config.train, config.engine.parallel == "fsdp" and "engine.parallel" in fixed
    micro = "train.micro_batch_sequences" in fixed and train.micro_batch_sequences

    def is_enough(row: Device, count: int) -> bool:
        if train.batch_sequences % (count * (micro or 1)) or (count == 1 and is_fsdp):
            return False
        return best_plan(config, row, devices=count, fixed=fixed) is not None

    first = (next((x for x in group if is_enough(*x)), None) for group in (more, others))
    return [x for x in first if x is not None]


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
    # With 50 times the rough estimate, the run fits without a count.
    if room is not None and 50 * estimate > room:
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
