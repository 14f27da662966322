"""``diffattn evaluate``."""

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from diffattn.errors import ConfigError
from diffattn.lab.cli.options import (
    AutoDtypeOption,
    BosOption,
    DeviceOption,
    VerifyOption,
    default_out,
    print_json,
    say,
    set_option,
)

_Asked = Annotated[
    list[str],
    typer.Argument(
        metavar="PROTOCOL|MODEL",
        help="protocols or presets of 'diffattn list protocols', or all; then model folders",
    ),
]
_Models = Annotated[
    list[str] | None,
    typer.Option(
        metavar="[LABEL=]PATH",
        help="run directory, study, model folder or hub name (repeatable; the first ever evaluated "
        "into --out is the baseline)",
    ),
]
_Settings = Annotated[
    list[str] | None,
    set_option("e.g. key_values.samples=20 (repeatable)", metavar="PROTOCOL.KEY=VALUE"),
]
_Out = Annotated[
    Path | None,
    typer.Option(help="evaluation folder; continued if it exists [runs/evaluation-LABEL]"),
]
_MaxLength = Annotated[
    int | None, typer.Option(min=2, help="longest context in tokens [the model's]")
]
_DeviceMap = Annotated[
    str | None, typer.Option(help="accelerate's map of the weights to devices: auto, balanced, ...")
]
_Revision = Annotated[str | None, typer.Option(help="commit, branch or tag of hub names [main]")]
_TrustRemoteCode = Annotated[
    bool, typer.Option("--trust-remote-code", help="run the code that comes with a model")
]
_DryRun = Annotated[bool, typer.Option("--dry-run", help="print the resolved parameters and stop")]


def evaluate(
    asked: _Asked,
    model: _Models = None,
    out: _Out = None,
    set_: _Settings = None,
    quick: Annotated[bool, typer.Option("--quick", help="reduced sizes, for a first look")] = False,
    limit: Annotated[int | None, typer.Option(min=1, help="most items per protocol [all]")] = None,
    max_length: _MaxLength = None,
    bos: BosOption = None,
    device: DeviceOption = None,
    dtype: AutoDtypeOption = "auto",
    device_map: _DeviceMap = None,
    revision: _Revision = None,
    trust_remote_code: _TrustRemoteCode = False,
    verify: VerifyOption = True,
    dry_run: _DryRun = False,
    json_: Annotated[bool, typer.Option("--json", help="print the results as JSON")] = False,
) -> None:
    """Evaluate models by the protocols of the papers.

    Writes a folder per model and protocol with every answer and the metrics with intervals; for
    several models also paired differences with tests. The same command again continues at the
    next item. 'diffattn report OUT' makes a page of the folder.
    """
    from diffattn.files.destination import require_folder_destination
    from diffattn.lab.cli.screen import ItemProgress
    from diffattn.lab.evaluation.protocol import parts
    from diffattn.lab.inference.named_models import shortest_context

    require_folder_destination(out or Path("runs"))
    protocols, models = _protocols_and_models(asked, model or [], revision)
    longest = (max_length or shortest_context(models.values())) if quick else None
    chosen = parts(protocols, set_ or [], quick=quick, longest=longest)
    out = out or default_out("evaluation", models, "-quick" if quick else "")
    if dry_run:
        resolved = {part.variant: part.protocol.parameters() for part in chosen}
        print_json({"models": models, "parts": resolved})
        return
    from diffattn.lab.evaluation.runner import run_evaluation  # loads PyTorch

    load = {"device": device, "dtype": dtype, "max_length": max_length, "add_bos": bos}
    load |= {"verify": verify, "revision": revision, "device_map": device_map}
    with ItemProgress(len(chosen) * len(models)) as progress:
        results, comparison = run_evaluation(
            chosen,
            models,
            out,
            load={**load, "trust_remote_code": trust_remote_code},
            limit=limit,
            on_start=progress.on_start,
            on_progress=progress.on_progress,
            on_message=progress.on_message,
        )
    print_results(results, comparison, out, as_json=json_)
    _exit_if_incomplete(results, len(chosen) * len(models))


def _protocols_and_models(
    asked: Sequence[str], models: Sequence[str], revision: str | None
) -> tuple[list[str], dict[str, str]]:
    """Split the arguments into protocols and models; return the protocols, and label to path."""
    from diffattn.lab.evaluation.catalog import PRESETS, PROTOCOLS
    from diffattn.lab.evaluation.protocol import require_known
    from diffattn.lab.inference.named_models import labelled

    known = {*PROTOCOLS, *PRESETS, "all"}
    unknown = [name for name in asked if name not in known]
    folders = [name for name in unknown if "/" in name or "=" in name or os.path.exists(name)]
    protocols = [name for name in asked if name not in folders]
    if not protocols:
        raise ConfigError(
            f"evaluate: a protocol must be named, such as ar_hits, got {' '.join(asked)}. "
            "See 'diffattn list protocols'."
        )
    for name in protocols:
        require_known(name)
    # With --revision, a path that does not exist is a hub name, which is checked when loaded.
    return protocols, labelled(
        [*folders, *models],
        on_message=say,
        has_no_folder=lambda path: revision is not None and not Path(path).exists(),
    )


def print_results(results: Sequence[Any], comparison: Any, out: Path, *, as_json: bool) -> None:
    """Print the results of models, and their comparison if there are several."""
    from diffattn.lab.cli.screen import print_table
    from diffattn.lab.report.evaluation.tables import difference_rows, metric_rows, results_json

    if as_json:
        typer.echo(results_json(results, comparison))
        return
    print_table(metric_rows(results))
    if comparison is not None:
        print_table(difference_rows(comparison))
        for sentence in [*comparison.skipped, *comparison.notes]:
            typer.echo(sentence)
    typer.echo(f"Records: {out}")


def _exit_if_incomplete(results: Sequence[Any], wanted: int) -> None:
    if failed := sum(result.num_failed for result in results):
        asked = sum(result.num_items for result in results)
        say(f"diffattn: {failed} of {asked} items failed (items.jsonl says why).")
    if missing := wanted - len(results):
        say(f"diffattn: {missing} of {wanted} evaluations could not run (see above).")
    if failed or missing:
        raise typer.Exit(1)
