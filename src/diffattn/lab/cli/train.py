"""``diffattn train``."""

import json
from pathlib import Path
from typing import Annotated, Any

import typer

from diffattn.lab.cli.options import DryRunOption, VerifyOption, say_if_finished

_Recipe = Annotated[str, typer.Argument(help="a name from 'diffattn list recipes'")]
_Out = Annotated[Path, typer.Option(help="run directory; continued if it exists")]
_Attention = Annotated[
    str | None,
    typer.Option(help="attention type, see 'diffattn list types' [the recipe's]"),
]
_Set = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="KEY=VALUE", help="e.g. train.learning_rate=1e-3 (repeatable)"),
]
_Data = Annotated[Path | None, typer.Option(help="folder of 'diffattn pack' [packs into OUT/data]")]
_InitFrom = Annotated[
    Path | None,
    typer.Option(help="start from the weights of this run or model folder [random weights]"),
]
_SameModel = Annotated[
    bool, typer.Option("--same-model", help="train the model of --init-from, not the recipe's")
]
_Resume = Annotated[bool, typer.Option("--resume", help="fail unless OUT holds a run to continue")]
_Json = Annotated[bool, typer.Option("--json", help="print results.json at the end")]


def train(
    recipe: _Recipe,
    out: _Out,
    attention: _Attention = None,
    set_: _Set = None,
    data: _Data = None,
    init_from: _InitFrom = None,
    same_model: _SameModel = False,
    verify: VerifyOption = True,
    resume: _Resume = False,
    dry_run: DryRunOption = False,
    json_: _Json = False,
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
    # The next import loads torch, which takes seconds: all names are checked before.
    from diffattn.lab.training.launch import configure

    config, packed = configure(planned.config(), request)
    if dry_run:
        _show(config, packed, request)
    else:
        _run(config, packed, request, json_)


def _show(config: Any, packed: Any, request: Any) -> None:
    from diffattn.lab.training.distributed import is_first
    from diffattn.lab.training.launch import data_notes

    if is_first():
        for line in [] if packed is None else data_notes(config, packed, request):
            typer.echo(line, err=True)
        typer.echo(json.dumps(config.shown(), indent=2, ensure_ascii=False))


def _run(config: Any, packed: Any, request: Any, json_: bool) -> None:
    from diffattn.lab.cli.screen.progress import RunsProgress
    from diffattn.lab.training.distributed import is_first
    from diffattn.lab.training.launch import launch_run

    steps = config.train.num_steps
    with RunsProgress(steps, 0, lambda _: steps, quiet=not is_first()) as progress:
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
        typer.echo(json.dumps(results, indent=2))
        return
    typer.echo(
        f"{config.name}: validation loss {results['validation_loss']:.4f} nats per token, "
        f"{results['validation_bits_per_byte']:.4f} bits per byte.\nModel: {request.out / 'model'}"
    )
