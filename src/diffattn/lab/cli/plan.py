"""``diffattn plan``."""

import json
import shlex
from dataclasses import asdict, replace
from typing import Annotated, Any

import typer

from diffattn.lab.cli.options import print_json, set_option

_RENDEZVOUS = "--rdzv-backend c10d --rdzv-endpoint HOST"


def plan(
    recipe: Annotated[
        str, typer.Argument(help="a name from 'diffattn list recipes' or 'diffattn list presets'")
    ],
    gpu: Annotated[str, typer.Option(help="a100, a100-40gb, h100, h200, b200, mi300x or cpu")],
    gpus: Annotated[int, typer.Option(min=1, help="number of GPUs")] = 1,
    attention: Annotated[
        str | None, typer.Option(help="attention type, see 'diffattn list types' [the recipe's]")
    ] = None,
    utilisation: Annotated[
        float | None,
        typer.Option(help="share of the peak FLOPs that is reached [as we measured it]"),
    ] = None,
    price: Annotated[float | None, typer.Option(help="US dollars for one GPU and hour")] = None,
    cache_batch: Annotated[int, typer.Option(min=1, help="sequences in the KV cache")] = 1,
    cache_length: Annotated[
        int | None, typer.Option(min=1, help="tokens of each sequence [the longest context]")
    ] = None,
    set_: Annotated[
        list[str] | None,
        set_option("e.g. engine.parallel=fsdp; the search leaves such a key alone (repeatable)"),
    ] = None,
    json_: Annotated[bool, typer.Option("--json", help="print JSON")] = False,
) -> None:
    """Find how a run fits on your devices, and what DIFF costs.

    Tries micro batches, sharding, logits in chunks and activation checkpointing. Prints the command
    of the fastest plan, and for comparison the plan of the softmax twin (for a softmax model, of
    the DIFF V1 twin). A preset is planned with the training of the papers' main model.
    """
    from diffattn.lab.catalog.recipes.catalog import plan_of_size
    from diffattn.lab.training.planning.devices import check_positive, device
    from diffattn.lab.training.settings import check_values
    from diffattn.models.config.attention_types import checked_types

    planned, target, changes = plan_of_size(recipe), device(gpu), set_ or []
    check_positive("--utilisation", utilisation, most=1.0)
    check_positive("--price", price)
    fixed = check_values(planned, changes)
    if attention is not None:
        checked_types("twin", attention)
    # The next import loads torch, which takes seconds: all names are checked before.
    from diffattn.lab.training.settings import apply_settings

    config = apply_settings(planned.config(), changes, attention=attention)
    options = {"devices": gpus, "utilisation": utilisation, "price": price}
    options |= {"cache_sequences": cache_batch, "cache_tokens": cache_length}
    plans = _best_plans(config, target, fixed, options)
    best = plans.get(config.model.attention_type)
    if best is None:
        given = [recipe, *(["--attention", attention] if attention else [])]
        given += [word for change in changes for word in ("--set", change)]
        _show_what_fits(shlex.join(given), config, target, gpus, fixed, json_)
    else:
        commands = _commands(recipe, attention, changes, planned, best[0], gpus)
        _show({name: made for name, (_, made) in plans.items()}, commands, json_)


def _best_plans(
    config: Any, target: Any, fixed: dict[str, Any], options: dict[str, Any]
) -> dict[str, Any]:
    """Attention type to (configuration, plan) of the run and of its twin, if they fit."""
    from diffattn.lab.training.planning.search import best_plan, twin_of

    if target.name == "cpu":
        import torch

        from diffattn.lab.benchmark.timing import matmul_peak, timer_of

        # One process uses all threads; several use one thread each.
        threads = torch.get_num_threads() if options["devices"] == 1 else 1
        rate = matmul_peak(getattr(torch, config.train.precision), "cpu", timer_of("cpu"))
        target = replace(target, peak_flops=threads * rate)
    runs = [run for run in (config, twin_of(config)) if run is not None]
    best = {
        run.model.attention_type: best_plan(run, target, fixed=fixed, **options) for run in runs
    }
    return {name: made for name, made in best.items() if made is not None}


def _commands(
    recipe: str, attention: str | None, changes: list[str], planned: Any, config: Any, gpus: int
) -> list[str]:
    from diffattn.lab.catalog.recipes.catalog import RECIPES, plan_of_size
    from diffattn.lab.training.planning.search import changes_of

    name, settings = recipe, []
    if recipe not in RECIPES:  # a preset: the recipe of the papers' main model, with its size
        name = "diff-transformer-3b"
        model = plan_of_size(name).model.settings()
        settings = [
            f"model.{key}={json.dumps(value)}"
            for key, value in planned.model.settings().items()
            if value != model[key]
        ]
    options = [] if attention is None else [f"--attention {attention}"]
    settings = [*settings, *changes, *changes_of(planned.config(), config, changes)]
    options += [f"--set {shlex.quote(change)}" for change in settings]
    start = "diffattn train"
    if gpus > 1:
        nodes = f"--standalone --nproc-per-node {gpus}"
        if gpus > 8 and gpus % 8 == 0:
            nodes = f"--nnodes {gpus // 8} --nproc-per-node 8 \\\n    {_RENDEZVOUS}"
        start = f"torchrun {nodes} \\\n    -m diffattn train"
    is_long = config.train.num_steps * config.train.batch_tokens > 10**9  # needs the user's texts
    commands = []
    if is_long and not any(change.startswith("data.") for change in changes):
        size = config.model.vocab_size
        commands.append(f"diffattn pack YOUR_TEXT --vocab-size {size} --out runs/tokens")
        options.append("--data runs/tokens")
    return [*commands, " \\\n    ".join([f"{start} {name} --out runs/{recipe}", *options])]


def _show(plans: dict[str, Any], commands: list[str], json_: bool) -> None:
    if json_:
        made = {name: asdict(plan) for name, plan in plans.items()}
        print_json({"plans": made, "commands": commands})
        return
    from diffattn.lab.catalog.models import type_name
    from diffattn.lab.cli.screen import print_table, print_text
    from diffattn.lab.training.planning.plan import cost_of_difference, heading, notes, plan_rows

    titled = {type_name(name).partition(" (")[0]: plan for name, plan in plans.items()}
    first = next(iter(plans.values()))
    typer.echo(heading(first))
    print_table(plan_rows(titled))
    lines = notes(first)
    if len(titled) == 2:
        (title, plan), (baseline, other) = titled.items()
        if first.attention_type == "softmax":
            title, plan, baseline, other = baseline, other, title, plan
        lines.insert(0, cost_of_difference(plan, title, other, baseline))
    print_text(lines)
    where = " (torchrun on each machine, HOST is one)" if _RENDEZVOUS in commands[-1] else ""
    typer.echo("\n  ".join([f"\nTrain it{where}:", *commands]))


def _show_what_fits(
    given: str, config: Any, target: Any, gpus: int, fixed: Any, json_: bool
) -> None:
    from diffattn.lab.training.planning.search import SEARCHED, enough_devices

    enough = enough_devices(config, target, gpus, fixed)
    if json_:
        devices = [{"gpu": other.name, "gpus": count} for other, count in enough]
        print_json({"plans": {}, "fits_on": devices})
        return
    values = "".join(f", with {key}={value}" for key, value in fixed.items() if key in SEARCHED)
    recipe = given.partition(" ")[0]
    typer.echo(f"{recipe} does not fit on {gpus} x {target.product}{values}.")
    if not enough:
        typer.echo("Nor does it fit on any larger device, or on many more.")
    for other, count in enough:
        command = f"diffattn plan {given} --gpu {other.name} --gpus {count}"
        typer.echo(f"It fits on {count} x {other.product}:\n  {command}")
