"""``diffattn train``."""

import json
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Annotated

import typer

from diffattn.lab.cli.options import VerifyOption


def train(
    recipe: Annotated[str, typer.Argument(help="a name from 'diffattn list recipes'")],
    out: Annotated[Path, typer.Option(help="run directory; continued if it exists")],
    attention: Annotated[
        str | None,
        typer.Option(help="train the recipe's twin: softmax, diff, diff_v2 or shared_diff"),
    ] = None,
    set_: Annotated[
        list[str] | None,
        typer.Option(
            "--set", metavar="KEY=VALUE", help="e.g. train.learning_rate=1e-3 (repeatable)"
        ),
    ] = None,
    data: Annotated[
        Path | None, typer.Option(help="folder of 'diffattn pack' [packs into OUT/data]")
    ] = None,
    init_from: Annotated[
        Path | None,
        typer.Option(help="start from the weights of this run or model folder [fresh weights]"),
    ] = None,
    same_model: Annotated[
        bool,
        typer.Option("--same-model", help="train the model of --init-from, not the recipe's"),
    ] = False,
    verify: VerifyOption = True,
    resume: Annotated[
        bool, typer.Option("--resume", help="insist on a run in OUT, to be continued")
    ] = False,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="print the resolved configuration and stop")
    ] = False,
    json_: Annotated[bool, typer.Option("--json", help="print results.json at the end")] = False,
) -> None:
    """Train one recipe and write a run directory.

    The same command again continues what was interrupted.
    """
    from diffattn.errors import ConfigError
    from diffattn.files.destination import require_folder_destination
    from diffattn.lab.catalog.recipes.catalog import plan
    from diffattn.lab.cli.screen.progress import RunsProgress
    from diffattn.lab.records.claim import is_claimed
    from diffattn.lab.training.settings import apply_settings, read_changes
    from diffattn.models.checkpoint_folder import checkpoint_folder
    from diffattn.models.config.attention_types import attention_facts

    planned = plan(recipe)
    read_changes(set_ or [])
    if attention is not None:
        attention_facts("twin", attention)
    require_folder_destination(out)
    if same_model and (init_from is None or attention is not None):
        got = "no --init-from" if init_from is None else "--attention too"
        raise ConfigError(f"train: --same-model takes the model of --init-from, got {got}.")
    if init_from is not None:
        checkpoint_folder(str(init_from))
    # torch loads from here on, after every name is known to be right.
    from diffattn.lab.training.distributed import (
        from_first,
        is_first,
        is_first_of_node,
        joined,
        together,
    )
    from diffattn.lab.training.prepare import PreparedData, open_data, prepare_data
    from diffattn.lab.training.windows import repetition

    verify = verify and not dry_run and is_first_of_node()
    packed = None if data is None else open_data(data, verify=False)
    config = planned.config()
    if packed is not None:  # the model's vocabulary follows the data's
        config = apply_settings(config, [f"data.vocab_size={packed.config.vocab_size}"])
        config = replace(config, data=packed.config)
    given: list[str] = []
    if same_model and init_from is not None:
        from diffattn.lab.training.initial import initial_config

        fields = initial_config(init_from).settings()
        given = [f"model.{name}={json.dumps(value)}" for name, value in fields.items()]
    config = apply_settings(config, [*given, *(set_ or [])], attention=attention)
    if packed is not None and config.data != packed.config:
        raise ConfigError("train: --data fixes the data settings, got --set data.* too.")
    if init_from is not None:
        from diffattn.lab.training.initial import initial_weights

        init = initial_weights(init_from, config.model, verify=verify)
        config = replace(config, init=init)

    def notes(read: PreparedData) -> list[str]:
        """What follows from the data and may not have been meant."""
        said = []
        ours, recipes = config.model.vocab_size, planned.model.vocab_size
        if data is not None and ours == read.config.vocab_size != recipes and not same_model:
            said.append(f"model.vocab_size is the data's {ours:,}, the recipe's is {recipes:,}")
        tokens = config.train.num_steps * config.train.batch_tokens
        again = repetition(config.windows, tokens, read.train.num_tokens)
        return said if again is None else [*said, again]

    if dry_run:
        if is_first():
            for line in [] if packed is None else notes(packed):
                typer.echo(line, err=True)
            typer.echo(json.dumps(config.shown(), indent=2, ensure_ascii=False))
        return

    from diffattn.lab.training.trainer import require_enough, require_runnable
    from diffattn.lab.training.trainer import train as run

    require_runnable(config)

    def may_start() -> None:
        if resume and not any((out / name).exists() for name in ("run.json", "data")):
            raise ConfigError(f"train: --resume needs a run in {out}, got none.")
        is_claimed(out, "run.json", "a run", besides="data")  # before data is packed there

    steps = config.train.num_steps
    with joined(), RunsProgress(steps, 0, lambda _: steps, quiet=not is_first()) as progress:
        with together():  # to hash much takes longer than processes wait to be joined
            if data is not None and verify:
                open_data(data)
        from_first(may_start)
        if packed is None:

            def pack() -> None:
                prepare_data(
                    config.data,
                    out / "data",
                    require=partial(require_enough, config),
                    on_message=progress.on_message,
                )

            from_first(pack)
            packed = open_data(out / "data", verify=False)  # just written, or checked
        for line in notes(packed) if is_first() else []:
            progress.on_message(line)
        results = run(
            config,
            packed,
            out,
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
        f"{results['validation_bits_per_byte']:.4f} bits per byte.\nModel: {out / 'model'}"
    )
