"""``diffattn plan``."""

import json
from typing import Annotated, Any

import typer

_SHOWN = 10_000
"""Bytes below which a part is not worth a line."""


def plan(
    recipe: Annotated[
        str, typer.Argument(help="a name from 'diffattn list recipes' or 'diffattn list presets'")
    ],
    gpu: Annotated[str, typer.Option(help="a100, a100-40gb, h100, h200, b200, mi300x or cpu")],
    gpus: Annotated[int, typer.Option(help="how many")] = 1,
    attention: Annotated[
        str | None,
        typer.Option(help="plan the recipe's twin: softmax, diff, diff_v2 or shared_diff"),
    ] = None,
    parallel: Annotated[str | None, typer.Option(help="ddp or fsdp, over several GPUs")] = None,
    activation_checkpointing: Annotated[
        bool, typer.Option("--activation-checkpointing", help="compute activations again")
    ] = False,
    utilisation: Annotated[
        float, typer.Option(help="share of the peak in bfloat16 that is reached; assumed")
    ] = 0.4,
    price: Annotated[float | None, typer.Option(help="of one GPU for an hour")] = None,
    cache_batch: Annotated[int, typer.Option(help="sequences of the KV cache")] = 1,
    cache_length: Annotated[
        int | None, typer.Option(help="tokens of each [the longest context]")
    ] = None,
    set_: Annotated[
        list[str] | None,
        typer.Option(
            "--set", metavar="KEY=VALUE", help="e.g. train.micro_batch_sequences=1 (repeatable)"
        ),
    ] = None,
    json_: Annotated[bool, typer.Option("--json", help="print JSON")] = False,
) -> None:
    """Say what a run needs before anything is rented: memory by part, time and cost.

    A preset is planned with the training of the papers' main model. Nothing is allocated.
    """
    from diffattn.lab.catalog.recipes.catalog import plan_of_size
    from diffattn.lab.training.engine import EngineConfig
    from diffattn.lab.training.planning.devices import check_positive, device
    from diffattn.lab.training.settings import apply_settings, read_changes
    from diffattn.models.config.attention_types import attention_facts

    planned = plan_of_size(recipe)
    target = device(gpu)
    changes = list(set_ or [])
    if parallel is not None:
        EngineConfig(parallel=parallel)  # type: ignore[arg-type]  # refused while it is cheap
        changes.append(f"engine.parallel={parallel}")
    if activation_checkpointing:
        changes.append("engine.activation_checkpointing=true")
    read_changes(changes)
    check_positive("--utilisation", utilisation, most=1.0)
    check_positive("--price", price)
    if attention is not None:
        attention_facts("twin", attention)
    # torch loads from here on, after every name is known to be right.
    from diffattn.lab.training.planning.plan import make_plan

    config = apply_settings(planned.config(), changes, attention=attention)
    made = make_plan(
        config,
        target,
        devices=gpus,
        utilisation=utilisation,
        price=price,
        cache_sequences=cache_batch,
        cache_tokens=cache_length,
    )
    if json_:
        typer.echo(json.dumps(made.as_dict() | {"device_source": target.source}, indent=2))
        return
    from diffattn.lab.cli.screen.tables import print_table

    print_table(_rows(made.as_dict(), price is not None))
    again = "; operations done again do not count" if made.activation_checkpointing else ""
    typer.echo(
        f"Speed and memory of the device: {target.source}. Utilisation is an assumption{again}."
    )


def _rows(made: dict[str, Any], priced: bool) -> list[dict[str, str]]:
    """Two columns for people."""
    from diffattn.ops.inputs.kernel_support import OPT_IN

    sharing = f", {made['parallel']}" if made["devices"] > 1 else ""
    if made["parallel"] == "fsdp" and made["replicas"] > 1:
        sharing += f" in {made['replicas']:,} replicas"
    again = ", activations computed again" if made["activation_checkpointing"] else ""
    cache = made["kv_cache"]
    by, otherwise = made["backend"], made["backend_untested"]
    if otherwise is not None:
        by += f" (with {OPT_IN}=1; else {otherwise})"
    rows = {
        "run": f"{made['name']}, {made['attention_type']} attention by {by}",
        "devices": f"{made['devices']:,} x {made['device']}{sharing}{again}",
        "parameters": f"{made['parameters']:,}, of them {made['non_embedding_parameters']:,} "
        "without embeddings",
        "operations per token": f"{_short(made['forward_flops_per_token'])} forward, "
        f"{_short(made['backward_flops_per_token'])} backward",
        "batch": f"{made['batch_tokens']:,} tokens; on each device "
        f"{made['passes_per_step']:,} x {made['micro_batch_sequences']:,} sequences",
        **{
            f"memory: {part}": _bytes(size)
            for part, size in made["memory"].items()
            if size >= _SHOWN
        },
        "memory of a device": _bytes(made["memory_bytes"]) + _verdict(made),
        "largest micro batch": _largest(made["largest_micro_batch"]),
        "KV cache": f"{_bytes(cache['bytes'])} for {cache['sequences']:,} x "
        f"{cache['tokens']:,} tokens in bfloat16 (when generating)",
        "tokens": _short(made["tokens"]),
    }
    if made["tokens_per_second"] is None:
        rows["time"] = "not estimated: no peak is known for this device and precision"
    else:
        rows["tokens per second"] = (
            f"{made['tokens_per_second']:,.0f} at {made['utilisation']:.0%} of the peak"
        )
        rows["time"] = f"{_time(made['days'])}, {_amount(made['device_hours'])} device hours"
        factor = made["composed_operations"]
        if factor is not None and factor > 1:
            rows["time by composed"] = (
                f"{_time(factor * made['days'])}: {factor:.2f} times the operations, as each map "
                "meets V by itself, with scores as wide as both maps' keys"
            )
        if priced:
            rows["cost"] = f"{_amount(made['cost'])} at the price given"
    return [{"plan": name, "": value} for name, value in rows.items()]


def _verdict(made: dict[str, Any]) -> str:
    if made["fits"] is None:
        return ""
    return f" of {_bytes(made['device_memory_bytes'])}: " + (
        "fits" if made["fits"] else "does not fit"
    )


def _time(days: float) -> str:
    if days >= 1:
        return f"{days:,.2f} days"
    hours = 24 * days
    return f"{hours:.1f} hours" if hours >= 1 else f"{60 * hours:.1f} minutes"


def _amount(value: float) -> str:
    """Of small numbers also what follows the point."""
    return f"{value:,.0f}" if value >= 100 else f"{value:,.2f}"


def _largest(size: int | None) -> str:
    if size is None:
        return "not known"
    return f"{size:,} sequences" if size else "none: one sequence does not fit"


def _bytes(size: int) -> str:
    for unit, of in (("TB", 1e12), ("GB", 1e9), ("MB", 1e6)):
        if size >= of:
            return f"{size / of:,.1f} {unit}"
    return f"{size:,} bytes"


def _short(count: float) -> str:
    """A large count as people write it."""
    for unit, size in (("T", 1e12), ("G", 1e9), ("M", 1e6)):
        if count >= size:
            return f"{count / size:,.4g} {unit}"
    return f"{count:,.0f}"
