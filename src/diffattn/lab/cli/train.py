"""``diffattn train``."""

from pathlib import Path
from typing import Annotated, Any

import typer

from diffattn.lab.cli.options import (
    DryRunOption,
    VerifyOption,
    print_json,
    say,
    say_if_finished,
    set_option,
)


def train(
    recipe: Annotated[str, typer.Argument(help="a name from 'diffattn list recipes'")],
    out: Annotated[Path, typer.Option(help="run directory; continued if it exists")],
    attention: Annotated[
        str | None, typer.Option(help="attention type, see 'diffattn list types' [the recipe's]")
    ] = None,
    set_: Annotated[
        list[str] | None, set_option("e.g. train.learning_rate=1e-3 (repeatable)")
    ] = None,
    data: Annotated[
        Path | None, typer.Option(help="folder of 'diffattn pack' [packs into OUT/data]")
    ] = None,
    init_from: Annotated[
        Path | None,
        typer.Option(help="start from the weights of this run or model folder [random weights]"),
    ] = None,
    same_model: Annotated[
        bool, typer.Option("--same-model", help="train the model of --init-from, not the recipe's")
    ] = False,
    verify: VerifyOption = True,
    resume: Annotated[
        bool, typer.Option("--resume", help="fail unless OUT holds a run to continue")
    ] = False,
    dry_run: DryRunOption = False,
    json_: Annotated[bool, typer.Option("--json", help="print results.json at the end")] = False,
) -> None:
    """Train one recipe and write a run directory.

    The same command again continues an interrupted run.
    """
    from diffattn.lab.catalog.recipes.catalog import plan
    from diffattn.lab.training.settings import TrainRequest, check_values

    planned = plan(recipe)
    check_values(planned, set_ or ())
    request = TrainRequest(
        out=out,
        changes=tuple(set_ or ()),
        attention=attention,
        data=data,
        init_from=init_from,
        same_model=same_model,
        verify=verify and not dry_run,
        resume=resume,
        recipe_vocab_size=planned.model.vocab_size,
    )
    if not dry_run:
        say_if_finished(out)
    # The next import loads torch, which takes seconds: recipe and settings are checked before.
    from diffattn.lab.training.run import configure

    config, packed = configure(planned.config(), request)
    _run(config, packed, request, dry_run, json_)


def _run(config: Any, packed: Any, request: Any, dry_run: bool, json_: bool) -> None:
    from diffattn.lab.cli.screen import RunsProgress
    from diffattn.lab.training.distributed import is_first
    from diffattn.lab.training.run import data_notes, launch_run

    if dry_run:
        if is_first():
            for line in [] if packed is None else data_notes(config, packed, request):
                say(line)
            print_json(config.shown())
        return
    steps = config.train.num_steps
    with RunsProgress(steps, 0, steps_of=lambda _: steps, quiet=not is_first()) as progress:
        results = launch_run(
            config,
            request,
            packed,
            on_progress=lambda step, loss: progress.on_progress(
                config.name, {"step": step, "loss": loss}
            ),
            on_message=progress.on_message,
        )
    if not is_first():
        return
    if json_:
        print_json(results)
        return
    typer.echo(
        f"{config.name}: validation loss {results['validation_loss']:.4f} nats per token, "
        f"{results['validation_bits_per_byte']:.4f} bits per byte.\nModel: {request.out / 'model'}"
    )
