"""``diffattn inspect``. The file name ends with ``_``: the standard library has an ``inspect``."""

from pathlib import Path
from typing import Annotated, Any

import typer

from diffattn.errors import ConfigError
from diffattn.lab.cli.options import (
    BosOption,
    DeviceOption,
    DtypeOption,
    VerifyOption,
    default_out,
    say,
    set_option,
    whole_numbers,
)

_Models = Annotated[
    list[str],
    typer.Argument(
        metavar="MODEL", help="[LABEL=]PATH of a run directory or model folder, or a hub name"
    ),
]
_Out = Annotated[Path | None, typer.Option(help="page to write [runs/attention-LABEL.html]")]
_Needle = Annotated[
    bool, typer.Option("--needle", help="read a long text that hides a number, and a question")
]
_Set = Annotated[
    list[str] | None,
    set_option("of --needle: length, depth, num_needles, haystack, sample or seed (repeatable)"),
]
_Cut = Annotated[bool, typer.Option("--cut", help="cut a longer text after --max-tokens")]
_Force = Annotated[bool, typer.Option("--force", help="replace --out even if it is no such page")]


def inspect_(
    models: _Models,
    out: _Out = None,
    text: Annotated[str | None, typer.Option(help="text to read [an example]")] = None,
    file: Annotated[Path | None, typer.Option(help="file of text to read")] = None,
    needle: _Needle = False,
    set_: _Set = None,
    layers: Annotated[str | None, typer.Option(help="e.g. 0,3; the first is 0 [all]")] = None,
    max_tokens: Annotated[int, typer.Option(min=1, help="longest text in tokens")] = 512,
    cut: _Cut = False,
    bos: BosOption = None,
    device: DeviceOption = None,
    dtype: DtypeOption = "float32",
    verify: VerifyOption = True,
    force: _Force = False,
) -> None:
    """Make a page that shows which tokens models attend to.

    One HTML file that works offline, for all layers and heads: A1, A2 and A1 − λA2 side by side, of
    several models on the same text. Softmax models show their one map.
    """
    from diffattn.lab.inference.named_models import labelled
    from diffattn.lab.inspection.request import Request, chosen_text
    from diffattn.lab.report.viewer.page import require_page_destination

    numbers = None if layers is None else whole_numbers("--layers", layers)
    if numbers is not None and len(set(numbers)) < len(numbers):
        raise ConfigError(f"--layers: must be different layers, got {layers!r}.")
    request = Request(
        layers=numbers,
        text=chosen_text(text, file, needle, set_ or []),
        max_tokens=max_tokens,
        cut=cut or text is file is None,  # the built-in example may always be cut
        add_bos=bos,
    )
    paths = labelled(models, option="MODEL", on_message=say)
    out = out or default_out("attention", paths, ".html")
    require_page_destination(out, force=force)
    options: dict[str, Any] = {"device": device, "dtype": dtype, "verify": verify, "force": force}
    from diffattn.lab.inspection.maps import inspect_models

    typer.echo(inspect_models(paths, request, out, **options, on_message=say))
