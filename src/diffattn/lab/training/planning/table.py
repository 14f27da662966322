"""Plans as a table with one column each, and sentences about them."""

from collections.abc import Mapping, Sequence

from diffattn.lab.training.planning.plan import Plan
from diffattn.lab.training.planning.step_memory import PARTS
from diffattn.models.memory import format_bytes

_SHOWN = 0.01
"""A part with a smaller share of the memory gets no line."""


def plan_rows(plans: Mapping[str, Plan]) -> list[dict[str, str]]:
    """Rows of quantities, with one column per plan. ``plans``: title of the column -> plan."""
    parts = [
        part
        for part in PARTS
        if any(plan.memory.get(part, 0) >= _SHOWN * plan.memory_bytes for plan in plans.values())
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
        copies = f"{plan.replicas:,}, in {plan.devices // plan.replicas:,} shards"
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
