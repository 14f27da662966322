"""Plan a run on given devices: parameters, operations, memory by part, time and cost."""

from bisect import bisect
from dataclasses import dataclass
from math import isqrt
from typing import Any

from diffattn.lab.training.config import RunConfig
from diffattn.lab.training.planning.devices import Device, measured_utilisation
from diffattn.lab.training.planning.step_memory import (
    FORWARD,
    LAST_BLOCK,
    LOSS,
    OPTIMIZER,
    StepMemory,
    largest,
    step_memory,
)
from diffattn.models.memory import available_bytes
from diffattn.models.twins import flops_per_token, parameter_count

ROOM = 0.9
"""Share of a device's memory that a plan may take. Fragments and the process need the rest."""

_MEASURED_BACKENDS = ("triton", "hopper", "sdpa", "chunked")
"""Backends that are as fast as the records; others may be far slower."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Plan:
    """The needs of a run on given devices. Bytes are per device."""

    name: str
    attention_type: str
    device: str
    devices: int
    parallel: str
    replicas: int
    """Copies of the model: one per device, or fewer if a copy is sharded."""
    activation_checkpointing: bool
    loss_chunk_tokens: int | None
    backend: str
    parameters: int
    non_embedding_parameters: int
    forward_flops_per_token: int
    backward_flops_per_token: int
    repeated_flops_per_token: int
    """Forward operations that the backward pass does again, to save memory."""
    tokens: int
    batch_tokens: int
    seq_len: int
    micro_batch_sequences: int
    """Sequences of one forward pass on one device."""
    passes_per_step: int
    memory: dict[str, int]
    """Part -> bytes at the peak of a step."""
    memory_bytes: int
    device_memory_bytes: int | None
    fits: bool | None
    """Whether the memory is at most :data:`ROOM` of the device's. ``None``: that is not known."""
    kv_cache: dict[str, int]
    """Key-value cache in generation: ``sequences``, ``tokens`` of each, ``bytes`` in bfloat16."""
    utilisation: float | None
    """Share of the peak that operations reach, repeated ones too. ``None`` also leaves time out."""
    utilisation_source: str
    tokens_per_second: float | None
    days: float | None
    device_hours: float | None
    cost: float | None
    """In US dollars; ``None`` without a price."""


def make_plan(
    config: RunConfig,
    device: Device,
    *,
    devices: int = 1,
    utilisation: float | None = None,
    price: float | None = None,
    cache_sequences: int = 1,
    cache_tokens: int | None = None,
) -> Plan:
    """Plan a run as it is configured. Memory is counted for eager PyTorch without fragmentation.

    Args:
        utilisation: Share of the peak that operations reach, in (0, 1]. Default: as measured.
        price: Price of one device for one hour, in US dollars.
        cache_tokens: Tokens of each sequence in the key-value cache. Default: the longest context.
    """
    model, train = config.model, config.train
    memory = RunMemory(config, device, devices)
    micro = train.micro_batch(devices, f"plan with --gpus {devices}")
    forward, repeated = flops_per_token(model, train.seq_len), _repeated(config)
    cache_tokens = cache_tokens or model.max_position_embeddings
    heads, width = model.cached_kv_shape
    cached = 4 * model.num_hidden_layers * heads * width  # keys and values of a token in bfloat16
    step, parts = memory.step(micro), memory.parts(micro)
    return Plan(
        name=config.name,
        attention_type=model.attention_type,
        device=device.product,
        devices=devices,
        parallel=config.engine.parallel if devices > 1 else "none",
        replicas=devices // memory.shards,
        activation_checkpointing=config.engine.activation_checkpointing,
        loss_chunk_tokens=config.engine.loss_chunk_tokens,
        backend=step.backend,
        parameters=parameter_count(model),
        non_embedding_parameters=parameter_count(model, embeddings=False),
        forward_flops_per_token=forward,
        backward_flops_per_token=2 * forward,
        repeated_flops_per_token=repeated,
        tokens=train.num_steps * train.batch_tokens,
        batch_tokens=train.batch_tokens,
        seq_len=train.seq_len,
        micro_batch_sequences=micro,
        passes_per_step=memory.share // micro,
        memory=parts,
        memory_bytes=sum(parts.values()),
        device_memory_bytes=memory.available,
        fits=None if memory.available is None else memory.fits(micro),
        kv_cache={
            "sequences": cache_sequences,
            "tokens": cache_tokens,
            "bytes": cache_sequences * cache_tokens * cached,
        },
        **_time_and_cost(
            config, device, devices, utilisation, 3 * forward + repeated, price, step.backend
        ),
    )


def _repeated(config: RunConfig) -> int:
    """Forward operations per token that the backward pass does again."""
    model, engine = config.model, config.engine
    logits = 2 * model.vocab_size * model.hidden_size
    blocks = flops_per_token(model, config.train.seq_len) - logits
    logits_again = 0 if engine.loss_chunk_tokens is None else logits
    return logits_again + (blocks if engine.activation_checkpointing else 0)


def _time_and_cost(
    config: RunConfig,
    device: Device,
    devices: int,
    utilisation: float | None,
    flops: int,
    price: float | None,
    backend: str,
) -> dict[str, Any]:
    """Speed, time and cost; unknown where no peak or no share of it is known."""
    model, train, peak = config.model, config.train, device.peak_flops
    source = "as given"
    if utilisation is None and backend in _MEASURED_BACKENDS:
        measured = measured_utilisation(
            device, train.precision, model.attention_type, model.hidden_size
        )
        utilisation, source = measured or (None, "")
    if device.name != "cpu" and train.precision != "bfloat16":
        peak = None  # the table holds bfloat16 peaks
    if peak is None or utilisation is None:
        fields = ("utilisation", "tokens_per_second", "days", "device_hours", "cost")
        missing = "peak is known" if peak is None else "share of the peak was measured"
        return dict.fromkeys(fields) | {"utilisation_source": f"no {missing} here"}
    speed = devices * peak * utilisation / flops
    hours = train.num_steps * train.batch_tokens / speed / 3600
    return {
        "utilisation": utilisation,
        "utilisation_source": source,
        "tokens_per_second": speed,
        "days": hours / 24,
        "device_hours": hours * devices,
        "cost": None if price is None else hours * devices * price,
    }


def device_phases(step: StepMemory, *, devices: int, shards: int) -> dict[str, dict[str, int]]:
    """Phase of a step -> part -> bytes, on one device of several.

    Shards are sent in float32. Autocast makes a bfloat16 copy of every gathered matrix. The graph
    keeps the copy until the backward pass, unless the block is computed again. With one shard every
    device holds a whole copy.
    """
    phases = {name: dict(parts) for name, parts in step.phases.items()}
    if devices == 1:
        return phases
    num_parameters = step.phases[LAST_BLOCK]["weights"] // 4  # float32
    for name, parts in phases.items():
        if shards == 1:  # the devices send a second copy of the gradients
            parts["communication"] = 4 * num_parameters
            continue
        for part in ("weights", "gradients", "optimizer"):
            parts[part] = -(-parts.get(part, 0) // shards)
        if name == OPTIMIZER:
            parts["working"] = -(-parts.get("working", 0) // shards)
            continue
        root, blocks = step.root_parameters, 2 * step.block_parameters
        # A block's gradient and the copy that is sent. The root's gradient is sent last.
        reduced = {FORWARD: 0, LOSS: root, LAST_BLOCK: root + blocks}
        parts["communication"] = 4 * (root + blocks + reduced.get(name, root + max(root, blocks)))
    return phases


class RunMemory:
    """Memory of a run on its devices, at any micro batch.

    Attributes:
        share: Sequences of a batch on one device.
        available: Bytes of one device; ``None`` if not known.
    """

    def __init__(self, config: RunConfig, device: Device, devices: int) -> None:
        self._config, self._device, self._devices = config, device, devices
        self.shards = config.engine.shards(devices, "plan")
        self.share = config.train.batch_sequences // devices
        self.available = device.memory_bytes
        if self.available is None and (machine := available_bytes()) is not None:
            self.available = machine // devices  # processes on a CPU share the machine's memory
        self._steps: dict[int, StepMemory] = {}

    def step(self, micro: int) -> StepMemory:
        """The memory of a step on one device that holds the whole model."""
        if micro not in self._steps:
            on_cpu = self._device.name == "cpu"
            self._steps[micro] = step_memory(
                self._config.model,
                self._config.train,
                sequences=micro,
                accumulates=micro < self.share,
                device="cpu" if on_cpu else "cuda",
                checkpointing=self._config.engine.activation_checkpointing,
                loss_chunk_tokens=self._config.engine.loss_chunk_tokens,
                apart=self._config.windows.apart,
                elsewhere=not on_cpu,
                tested=self._device.capability is not None,
            )
        return self._steps[micro]

    def parts(self, micro: int) -> dict[str, int]:
        """Bytes by part at the peak of a step."""
        return largest(device_phases(self.step(micro), devices=self._devices, shards=self.shards))

    def fits(self, micro: int) -> bool:
        """Whether a micro batch needs at most :data:`ROOM` of the memory, or that is not known."""
        return self.available is None or sum(self.parts(micro).values()) <= ROOM * self.available

    def largest_micro_batch(self, most: int) -> int:
        """The largest divisor of a device's share, at most ``most``, that fits; 0 if none does."""
        small = [size for size in range(1, isqrt(self.share) + 1) if self.share % size == 0]
        sizes = sorted({*small, *(self.share // size for size in small)})
        sizes = [size for size in sizes if size <= most]
        count = bisect(sizes, False, key=lambda size: not self.fits(size))  # small ones fit
        return sizes[count - 1] if count else 0
