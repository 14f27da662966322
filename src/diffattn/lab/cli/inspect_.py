"""``diffattn inspect``; the standard library has a module of that name."""

from pathlib import Path
from typing import Annotated

import typer

from diffattn.lab.cli.options import DeviceOption, DtypeOption, VerifyOption


def inspect_(
    models: Annotated[
        list[str],
        typer.Argument(
            metavar="MODEL", help="[LABEL=]PATH of a run directory or model folder, or a hub name"
        ),
    ],
    out: Annotated[Path, typer.Option(help="page to write, for example page.html")],
    text: Annotated[str | None, typer.Option(help="text to read")] = None,
    file: Annotated[Path | None, typer.Option(help="or a file of text")] = None,
    needle: Annotated[
        bool, typer.Option("--needle", help="or a number hidden in a long text, and a question")
    ] = False,
    set_: Annotated[
        list[str] | None,
        typer.Option(
            "--set",
            metavar="KEY=VALUE",
            help="of --needle: length, depth, num_needles, haystack, sample or seed (repeatable)",
        ),
    ] = None,
    layers: Annotated[str | None, typer.Option(help="e.g. 0,3; counted from 0 [all]")] = None,
    max_tokens: Annotated[int, typer.Option(min=1, help="longest text in tokens")] = 512,
    cut: Annotated[
        bool, typer.Option("--cut", help="keep the first tokens of a longer text")
    ] = False,
    bos: Annotated[
        bool | None,
        typer.Option("--bos/--no-bos", help="begin with BOS [if the tokenizer has one]"),
    ] = None,
    device: DeviceOption = None,
    dtype: DtypeOption = "float32",
    verify: VerifyOption = True,
    force: Annotated[
        bool, typer.Option("--force", help="replace --out also if it is no such page")
    ] = False,
) -> None:
    """Make a page of what models attend to.

    One file that works offline: tokens, layers and heads, A1, A2 and A1 − λA2 side by side, several
    models on the same text. Softmax models show their one map.
    """
    from diffattn.errors import ConfigError
    from diffattn.lab.cli.options import whole_numbers
    from diffattn.lab.inference.labels import labelled
    from diffattn.lab.inspection.request import Request, chosen_text
    from diffattn.lab.report.viewer.page import require_page_destination
    from diffattn.models.checkpoint_folder import checkpoint_folder

    paths = labelled(models, option="MODEL")
    chosen = None if layers is None else whole_numbers("--layers", layers)
    if chosen is not None and len(set(chosen)) < len(chosen):
        raise ConfigError(f"--layers: must be different layers, got {layers!r}.")
    request = Request(
        text=chosen_text(text, file, needle, set_ or []),
        layers=chosen,
        max_tokens=max_tokens,
        cut=cut,
        add_bos=bos,
    )
    require_page_destination(out, force=force)
    for path in paths.values():
        checkpoint_folder(path)

    from diffattn.lab.cli.screen.progress import StderrBars  # after everything that needs no model
    from diffattn.lab.inspection.session import inspect_models

    page = inspect_models(
        paths, request, out, device=device, dtype=dtype, verify=verify, force=force,
        on_message=StderrBars().on_message,
    )  # fmt: skip
    typer.echo(page)
