"""Plan a run on given devices: parameters, operations, memory by part, time and cost."""

from bisect import bisect
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from math import isqrt
from typing import Any

from diffattn.lab.training.config import RunConfig
from diffattn.lab.training.planning.devices import GPU_HERE, Device, measured_utilisation
from diffattn.lab.training.planning.step_memory import (
    FORWARD,
    LAST_BLOCK,
    LOSS,
    OPTIMIZER,
    PARTS,
    StepMemory,
    largest,
    step_memory,
)
from diffattn.models.memory import available_bytes, format_bytes
from diffattn.models.twins import flops_per_token, parameter_count

ROOM = 0.9
"""Share of a device's memory that a plan may take. Fragments and the process need the rest."""


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
        **_time_and_cost(memory, 3 * forward + repeated, step.backend, utilisation, price),
    )


def _repeated(config: RunConfig) -> int:
    model, engine = config.model, config.engine
    logits = 2 * model.vocab_size * model.hidden_size
    blocks = flops_per_token(model, config.train.seq_len) - logits
    logits_again = 0 if engine.loss_chunk_tokens is None else logits
    return logits_again + (blocks if engine.activation_checkpointing else 0)


def _time_and_cost(
    run: "RunMemory", flops: int, backend: str, utilisation: float | None, price: float | None
) -> dict[str, Any]:
    """Speed, time and cost; unknown where no peak or no share of it is known."""
    model, train, device = run.config.model, run.config.train, run.device
    peak, source = device.peak_flops, "as given"
    # Other backends may be far slower than the records.
    if utilisation is None and backend in ("triton", "hopper", "sdpa", "chunked"):
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
    speed = run.devices * peak * utilisation / flops
    hours = train.num_steps * train.batch_tokens / speed / 3600
    return {
        "utilisation": utilisation,
        "utilisation_source": source,
        "tokens_per_second": speed,
        "days": hours / 24,
        "device_hours": hours * run.devices,
        "cost": None if price is None else hours * run.devices * price,
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
    """Memory of a run on its devices, at any micro batch."""

    def __init__(self, config: RunConfig, device: Device, devices: int) -> None:
        self.config, self.device, self.devices = config, device, devices
        self.shards = config.engine.shards(devices, "plan")
        self.share = config.train.batch_sequences // devices  # of a batch on one device
        self.available = device.memory_bytes  # of one device; None if not known
        if self.available is None and (machine := available_bytes()) is not None:
            self.available = machine // devices  # processes on a CPU share the machine's memory
        self.step = cache(self._step)

    def _step(self, micro: int) -> StepMemory:
        on_cpu = self.device.name == "cpu"
        return step_memory(
            self.config.model,
            self.config.train,
            sequences=micro,
            accumulates=micro < self.share,
            device="cpu" if on_cpu else "cuda",
            checkpointing=self.config.engine.activation_checkpointing,
            loss_chunk_tokens=self.config.engine.loss_chunk_tokens,
            apart=self.config.windows.apart,
            elsewhere=not on_cpu and self.device != GPU_HERE,
            tested=self.device.capability is not None,
        )

    def parts(self, micro: int) -> dict[str, int]:
        """Bytes by part at the peak of a step."""
        return largest(device_phases(self.step(micro), devices=self.devices, shards=self.shards))

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


def plan_rows(plans: Mapping[str, Plan]) -> list[dict[str, str]]:
    """Rows of quantities, with one column per plan. A part below 1 % of all memory has no row."""
    parts = [
        part
        for part in PARTS
        if any(plan.memory.get(part, 0) >= 0.01 * plan.memory_bytes for plan in plans.values())
    ]
    columns = {title: _rows(plan, parts) for title, plan in plans.items()}
    return [
        {"": name} | {title: column.get(name, "") for title, column in columns.items()}
        for name in next(iter(columns.values()))
    ]


def heading(plan: Plan) -> str:
    """The run and its devices."""
    devices = f"{plan.devices:,} x {plan.device}"
    return f"{plan.name}: {_count(plan.tokens)} tokens on {devices}"


def cost_of_difference(plan: Plan, title: str, other: Plan, baseline: str) -> str:
    """A sentence on the time and memory of ``plan``, called ``title``, relative to a baseline."""
    parts, room = [], ""
    if plan.days is not None and other.days is not None:
        parts.append(f"{plan.days / other.days:.2f} times the time")
    if plan.micro_batch_sequences == other.micro_batch_sequences:
        parts.append(f"{plan.memory_bytes / other.memory_bytes:.2f} times the memory")
    else:
        room = (
            f" There is room for {plan.micro_batch_sequences:,} x {plan.seq_len:,} tokens a pass, "
            f"with the {baseline} for {other.micro_batch_sequences:,} x {plan.seq_len:,}."
        )
    costs = f"{title} takes {' and '.join(parts)} of the {baseline}." if parts else ""
    return (costs + room).strip()


def notes(plan: Plan) -> list[str]:
    """Sentences about the assumptions behind the numbers."""
    if plan.days is None:
        return []
    source = f"Share of the peak: {plan.utilisation_source}."
    waits = "It is assumed, not measured, that devices do not wait for each other."
    return [source, waits] if plan.devices > 1 else [source]


def _rows(plan: Plan, parts: Sequence[str]) -> dict[str, str]:
    memory = format_bytes(plan.memory_bytes)
    if plan.device_memory_bytes is not None:
        memory += f" of {format_bytes(plan.device_memory_bytes)}"
    copies, cache = f"{plan.devices:,}, whole" if plan.devices > 1 else "1", plan.kv_cache
    cached = f"{cache['sequences']:,} x {cache['tokens']:,} tokens"
    if plan.parallel == "fsdp":
        copies = f"1, in {plan.devices:,} shards"
    return {
        "parameters": _count(plan.parameters),
        "attention by": plan.backend,
        "copies of the model": copies,
        "pass on a device": f"{plan.micro_batch_sequences:,} x {plan.seq_len:,} tokens",
        "passes per step": f"{plan.passes_per_step:,}",
        "activations": "computed again" if plan.activation_checkpointing else "kept",
        "logits": "all at once"
        if plan.loss_chunk_tokens is None
        else f"{plan.loss_chunk_tokens:,} tokens at a time",
        "memory of a device": memory,
        **{f"  {part}": format_bytes(plan.memory.get(part, 0)) for part in parts},
        **_time_rows(plan),
        f"KV cache, {cached}": format_bytes(cache["bytes"]),
    }


def _time_rows(plan: Plan) -> dict[str, str]:
    flops = plan.forward_flops_per_token + plan.backward_flops_per_token
    rows = {"operations per token": _count(flops + plan.repeated_flops_per_token)}
    if plan.days is None or plan.tokens_per_second is None or plan.device_hours is None:
        return rows | {"time": "not measured"}
    rows["share of the peak"] = f"{plan.utilisation:.0%}"
    rows["tokens per second"] = f"{plan.tokens_per_second:,.0f}"
    rows["time"] = _time(plan.days)
    rows["device hours"] = _amount(plan.device_hours)
    if plan.cost is not None:
        rows["cost"] = f"{_amount(plan.cost)} US dollars"
    return rows


def _time(days: float) -> str:
    if days >= 1:
        return f"{days:,.2f} days"
    hours = 24 * days
    return f"{hours:.1f} hours" if hours >= 1 else f"{60 * hours:.1f} minutes"


def _amount(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:,.2f}"


def _count(count: float) -> str:
    for unit, least in (("T", 1e12), ("B", 1e9), ("M", 1e6), ("K", 1e3)):
        if count >= least:
            return f"{count / least:,.4g}{unit}"
    return f"{count:,.0f}"
