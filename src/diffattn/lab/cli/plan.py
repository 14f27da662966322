"""``diffattn plan``."""

import json
from typing import Annotated, Any

import typer

_Recipe = Annotated[
    str, typer.Argument(help="a name from 'diffattn list recipes' or 'diffattn list presets'")
]
_Gpu = Annotated[str, typer.Option(help="a100, a100-40gb, h100, h200, b200, mi300x or cpu")]
_Gpus = Annotated[int, typer.Option(help="how many")]
_Attention = Annotated[
    str | None, typer.Option(help="plan the recipe's twin: softmax, diff, diff_v2 or shared_diff")
]
_Parallel = Annotated[str | None, typer.Option(help="ddp or fsdp, over several GPUs")]
_Checkpointing = Annotated[
    bool, typer.Option("--activation-checkpointing", help="compute activations again")
]
_Utilisation = Annotated[
    float, typer.Option(help="share of the peak in bfloat16 that is reached; assumed")
]
_Price = Annotated[float | None, typer.Option(help="of one GPU for an hour")]
_CacheBatch = Annotated[int, typer.Option(help="sequences of the KV cache")]
_CacheLength = Annotated[int | None, typer.Option(help="tokens of each [the longest context]")]
_Set = Annotated[
    list[str] | None,
    typer.Option(
        "--set", metavar="KEY=VALUE", help="e.g. train.micro_batch_sequences=1 (repeatable)"
    ),
]
_Json = Annotated[bool, typer.Option("--json", help="print JSON")]


def plan(
    recipe: _Recipe,
    gpu: _Gpu,
    gpus: _Gpus = 1,
    attention: _Attention = None,
    parallel: _Parallel = None,
    activation_checkpointing: _Checkpointing = False,
    utilisation: _Utilisation = 0.4,
    price: _Price = None,
    cache_batch: _CacheBatch = 1,
    cache_length: _CacheLength = None,
    set_: _Set = None,
    json_: _Json = False,
) -> None:
    """Say what a run needs before anything is rented: memory by part, time and cost.

    A preset is planned with the training of the papers' main model. Nothing is allocated.
    """
    from diffattn.lab.catalog.recipes.catalog import plan_of_size
    from diffattn.lab.training.planning.devices import check_positive, device
    from diffattn.lab.training.settings import apply_settings

    planned, target = plan_of_size(recipe), device(gpu)
    check_positive("--utilisation", utilisation, most=1.0)
    check_positive("--price", price)
    changes = _changes(set_ or [], parallel, activation_checkpointing, attention)
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
    _show(made, target.source, json_)


def _changes(
    settings: list[str], parallel: str | None, checkpointing: bool, attention: str | None
) -> list[str]:
    """All changes to the recipe as settings; checked, as the attention type is."""
    from diffattn.lab.training.settings import read_changes
    from diffattn.models.config.attention_types import attention_facts

    changes = list(settings)
    if parallel is not None:
        changes.append(f"engine.parallel={parallel}")
    if checkpointing:
        changes.append("engine.activation_checkpointing=true")
    read_changes(changes)
    if attention is not None:
        attention_facts("twin", attention)
    return changes


def _show(plan: Any, device_source: str, json_: bool) -> None:
    if json_:
        typer.echo(json.dumps(plan.as_dict() | {"device_source": device_source}, indent=2))
        return
    from diffattn.lab.cli.screen.tables import print_table
    from diffattn.lab.training.planning.table import plan_rows

    print_table(plan_rows(plan))
    again = "; operations done again do not count" if plan.activation_checkpointing else ""
    typer.echo(
        f"Speed and memory of the device: {device_source}. Utilisation is an assumption{again}."
    )
