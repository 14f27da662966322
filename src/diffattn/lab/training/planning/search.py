"""Find settings with which a run fits on given devices. They change memory, but not the result."""

import json
from collections.abc import Collection, Iterable, Iterator
from dataclasses import replace
from operator import attrgetter
from typing import Any

from diffattn.errors import ConfigError
from diffattn.lab.training.config import RunConfig
from diffattn.lab.training.planning.devices import DEVICES, Device
from diffattn.lab.training.planning.plan import Plan, RunMemory, make_plan

_CHUNK = 1_024
"""Tokens whose logits exist at once, if they are computed in chunks."""
_ENOUGH_TOKENS = 4_096
"""Tokens per pass at which speed was measured. A plan has fewer only if no other plan fits."""
_DOUBLINGS = 7
"""How many numbers of devices are tried, each twice the last."""
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
        if micro * train.seq_len >= min(_ENOUGH_TOKENS, most * train.seq_len):
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
            for chunk in values("loss_chunk_tokens", None, _CHUNK):
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
    more = [(kind, least * 2**n) for n in range(_DOUBLINGS)]
    others = [
        (row, devices) for row in larger if (row.memory_bytes or 0) > (kind.memory_bytes or 0)
    ]

    def is_enough(row: Device, count: int) -> bool:
        is_even = config.train.batch_sequences % count == 0
        return is_even and best_plan(config, row, devices=count, fixed=fixed) is not None

    first = (next((x for x in group if is_enough(*x)), None) for group in (more, others))
    return [x for x in first if x is not None]
