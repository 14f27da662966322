"""``diffattn pack``."""

from pathlib import Path
from typing import Annotated

import typer

from diffattn.lab.cli.options import print_json


def pack(
    source: Annotated[
        str,
        typer.Argument(
            help="python (this Python's library and documentation), stdlib (its library alone), "
            "packages (those installed), a text file, folder or JSONL file, or "
            "hub:NAME[@REVISION][:CONFIG]"
        ),
    ],
    out: Annotated[Path, typer.Option(help="folder of the token files")],
    tokenizer: Annotated[
        str | None, typer.Option(help="name or folder of a tokenizer [trains one]")
    ] = None,
    vocab_size: Annotated[
        int, typer.Option(help="entries of the tokenizer, at most; the model's vocabulary")
    ] = 8_192,
    validation_fraction: Annotated[float, typer.Option(help="share of documents held out")] = 0.05,
    text_field: Annotated[str, typer.Option(help="field of JSONL or hub rows")] = "text",
    json_: Annotated[bool, typer.Option("--json", help="print hashes and counts as JSON")] = False,
) -> None:
    """Turn text into memory-mapped token files, split by document.

    The same command again continues where it was interrupted.
    """
    from diffattn.lab.cli.screen import ByteProgress
    from diffattn.lab.training.config import DataConfig

    config = DataConfig(
        source=source,
        tokenizer=tokenizer,
        vocab_size=vocab_size,
        validation_fraction=validation_fraction,
        text_field=text_field,
    )
    from diffattn.lab.training.prepare import prepare_data

    with ByteProgress("packing") as progress:
        data = prepare_data(
            config, out, on_message=progress.on_message, on_progress=progress.on_progress
        )
    if json_:
        print_json(data.facts())
    else:
        typer.echo(
            f"{data.train.num_tokens:,} training tokens, {data.validation.num_tokens:,} validation "
            f"tokens, {data.bytes_per_token:.2f} bytes per token, in {data.folder}"
        )
