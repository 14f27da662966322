"""A plan as a table for people."""

from diffattn.lab.training.planning.plan import Plan
from diffattn.ops.inputs.kernel_support import OPT_IN

_SHOWN = 10_000
"""Bytes below which a part is not worth a line."""
_BYTES = (("TB", 1e12), ("GB", 1e9), ("MB", 1e6))
_COUNTS = (("T", 1e12), ("G", 1e9), ("M", 1e6))


def plan_rows(plan: Plan) -> list[dict[str, str]]:
    """Rows of two columns: the quantity and its value in words."""
    rows = {**_run_rows(plan), **_memory_rows(plan), **_time_rows(plan)}
    return [{"plan": name, "": value} for name, value in rows.items()]


def _run_rows(plan: Plan) -> dict[str, str]:
    backend = plan.backend
    if plan.backend_untested is not None:
        backend += f" (with {OPT_IN}=1; else {plan.backend_untested})"
    devices = f"{plan.devices:,} x {plan.device}"
    if plan.devices > 1:
        devices += f", {plan.parallel}"
    if plan.parallel == "fsdp" and plan.replicas > 1:
        devices += f" in {plan.replicas:,} replicas"
    if plan.activation_checkpointing:
        devices += ", activations computed again"
    return {
        "run": f"{plan.name}, {plan.attention_type} attention by {backend}",
        "devices": devices,
        "parameters": f"{plan.parameters:,}, of them {plan.non_embedding_parameters:,} "
        "without embeddings",
        "operations per token": f"{_count(plan.forward_flops_per_token)} forward, "
        f"{_count(plan.backward_flops_per_token)} backward",
        "batch": f"{plan.batch_tokens:,} tokens; on each device "
        f"{plan.passes_per_step:,} x {plan.micro_batch_sequences:,} sequences",
    }


def _memory_rows(plan: Plan) -> dict[str, str]:
    rows = {f"memory: {part}": _bytes(size) for part, size in plan.memory.items() if size >= _SHOWN}
    memory = _bytes(plan.memory_bytes)
    if plan.device_memory_bytes is not None:
        verdict = "fits" if plan.fits else "does not fit"
        memory += f" of {_bytes(plan.device_memory_bytes)}: {verdict}"
    largest = "not known"
    if plan.largest_micro_batch is not None:
        size = plan.largest_micro_batch
        largest = f"{size:,} sequences" if size else "none: one sequence does not fit"
    cache = plan.kv_cache
    return {
        **rows,
        "memory of a device": memory,
        "largest micro batch": largest,
        "KV cache": f"{_bytes(cache['bytes'])} for {cache['sequences']:,} x "
        f"{cache['tokens']:,} tokens in bfloat16 (when generating)",
    }


def _time_rows(plan: Plan) -> dict[str, str]:
    rows = {"tokens": _count(plan.tokens)}
    if plan.tokens_per_second is None or plan.days is None or plan.device_hours is None:
        return rows | {"time": "not estimated: no peak is known for this device and precision"}
    speed = f"{plan.tokens_per_second:,.0f} at {plan.utilisation:.0%} of the peak"
    rows["tokens per second"] = speed
    rows["time"] = f"{_time(plan.days)}, {_amount(plan.device_hours)} device hours"
    factor = plan.composed_operations
    if factor is not None and factor > 1:
        rows["time by composed"] = (
            f"{_time(factor * plan.days)}: {factor:.2f} times the operations, as each map "
            "meets V by itself, with scores as wide as both maps' keys"
        )
    if plan.cost is not None:
        rows["cost"] = f"{_amount(plan.cost)} at the price given"
    return rows


def _time(days: float) -> str:
    if days >= 1:
        return f"{days:,.2f} days"
    hours = 24 * days
    return f"{hours:.1f} hours" if hours >= 1 else f"{60 * hours:.1f} minutes"


def _amount(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:,.2f}"


def _bytes(size: int) -> str:
    for unit, least in _BYTES:
        if size >= least:
            return f"{size / least:,.1f} {unit}"
    return f"{size:,} bytes"


def _count(count: float) -> str:
    for unit, least in _COUNTS:
        if count >= least:
            return f"{count / least:,.4g} {unit}"
    return f"{count:,.0f}"
