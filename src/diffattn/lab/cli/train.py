"""``diffattn train``."""

import json
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Annotated, Any

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
    from diffattn.lab.training.settings import read_changes
    from diffattn.models.checkpoint_folder import checkpoint_folder
    from diffattn.models.config.attention_types import attention_facts

    planned, changes = plan(recipe), set_ or []
    read_changes(changes)
    if attention is not None:
        attention_facts("twin", attention)
    require_folder_destination(out)
    if same_model and (init_from is None or attention is not None):
        got = "no --init-from" if init_from is None else "--attention too"
        raise ConfigError(f"train: --same-model takes the model of --init-from, got {got}.")
    if init_from is not None:
        checkpoint_folder(str(init_from))
    # torch loads from here on, after every name is known to be right.
    from diffattn.lab.training.distributed import is_first, is_first_of_node
    from diffattn.lab.training.initial import initial_weights
    from diffattn.lab.training.prepare import open_data

    verify = verify and not dry_run and is_first_of_node()
    packed = None if data is None else open_data(data, verify=False)
    config = _configure(planned, changes, packed, attention, init_from if same_model else None)
    if init_from is not None:
        config = replace(config, init=initial_weights(init_from, config.model, verify=verify))
    recipe_vocab = None if data is None or same_model else planned.model.vocab_size
    if dry_run:
        if is_first():
            for line in [] if packed is None else _notes(config, packed, recipe_vocab):
                typer.echo(line, err=True)
            typer.echo(json.dumps(config.shown(), indent=2, ensure_ascii=False))
        return
    results = _run(config, out, packed, data if verify else None, recipe_vocab, resume=resume)
    if not is_first():
        return
    if json_:
        typer.echo(json.dumps(results, indent=2))
        return
    typer.echo(
        f"{config.name}: validation loss {results['validation_loss']:.4f} nats per token, "
        f"{results['validation_bits_per_byte']:.4f} bits per byte.\nModel: {out / 'model'}"
    )


def _configure(
    planned: Any, changes: list[str], packed: Any, attention: str | None, model_from: Path | None
) -> Any:
    """The recipe's configuration, with the data's vocabulary, another model and the changes."""
    from diffattn.errors import ConfigError
    from diffattn.lab.training.initial import initial_config
    from diffattn.lab.training.settings import apply_settings

    config = planned.config()
    if packed is not None:  # the model's vocabulary follows the data's
        config = apply_settings(config, [f"data.vocab_size={packed.config.vocab_size}"])
        config = replace(config, data=packed.config)
    fields = {} if model_from is None else initial_config(model_from).settings()
    given = [f"model.{name}={json.dumps(value)}" for name, value in fields.items()]
    config = apply_settings(config, [*given, *changes], attention=attention)
    if packed is not None and config.data != packed.config:
        raise ConfigError("train: --data fixes the data settings, got --set data.* too.")
    return config


def _notes(config: Any, data: Any, recipe_vocab: int | None) -> list[str]:
    """Consequences of the data that the user may not have meant."""
    from diffattn.lab.training.loop.data_order import repetition

    lines, vocab = [], config.model.vocab_size
    if recipe_vocab is not None and vocab == data.config.vocab_size != recipe_vocab:
        lines.append(f"model.vocab_size is the data's {vocab:,}, the recipe's is {recipe_vocab:,}")
    tokens = config.train.num_steps * config.train.batch_tokens
    again = repetition(config.windows, tokens, data.train.num_tokens)
    return lines if again is None else [*lines, again]


def _run(
    config: Any,
    out: Path,
    packed: Any,
    to_verify: Path | None,
    recipe_vocab: int | None,
    *,
    resume: bool,
) -> dict[str, Any]:
    """Pack the data where it is not yet, and train."""
    from diffattn.errors import ConfigError
    from diffattn.lab.cli.screen.progress import RunsProgress
    from diffattn.lab.records.claim import is_claimed
    from diffattn.lab.training.distributed import from_first, is_first, joined, together
    from diffattn.lab.training.prepare import open_data, prepare_data
    from diffattn.lab.training.run import require_enough, require_runnable
    from diffattn.lab.training.run import train as train_run

    require_runnable(config)
    steps = config.train.num_steps

    def claim_and_pack() -> None:
        if resume and not any((out / name).exists() for name in ("run.json", "data")):
            raise ConfigError(f"train: --resume needs a run in {out}, got none.")
        is_claimed(out, "run.json", "a run", besides="data")  # before data is packed there
        if packed is None:
            require, on_message = partial(require_enough, config), progress.on_message
            prepare_data(config.data, out / "data", require=require, on_message=on_message)

    with joined(), RunsProgress(steps, 0, lambda _: steps, quiet=not is_first()) as progress:
        with together():  # to hash much takes longer than processes wait to be joined
            if to_verify is not None:
                open_data(to_verify)
        from_first(claim_and_pack)
        data = packed or open_data(out / "data", verify=False)  # just written, or checked
        for line in _notes(config, data, recipe_vocab) if is_first() else []:
            progress.on_message(line)

        def on_progress(step: int, loss: float | None) -> None:
            progress.on_progress(config.name, {"step": step, "loss": loss})

        return train_run(config, data, out, on_progress=on_progress, on_message=progress.on_message)
