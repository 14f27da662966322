"""``diffattn evaluate``."""

import json
from pathlib import Path
from typing import Annotated

import typer

from diffattn.lab.cli.options import AutoDtypeOption, DeviceOption, VerifyOption


def evaluate(
    protocols: Annotated[
        list[str],
        typer.Argument(help="protocols or presets (see 'diffattn list protocols'), or all"),
    ],
    model: Annotated[
        list[str],
        typer.Option(
            metavar="[LABEL=]PATH",
            help="run directory, model folder or hub name, or LABEL=URL of a completions endpoint "
            "(repeatable; the first that --out has seen is the baseline)",
        ),
    ],
    out: Annotated[Path, typer.Option(help="evaluation folder; continued if it exists")],
    set_: Annotated[
        list[str] | None,
        typer.Option(
            "--set", metavar="PROTOCOL.KEY=VALUE", help="e.g. key_values.samples=20 (repeatable)"
        ),
    ] = None,
    served: Annotated[
        list[str] | None,
        typer.Option(
            metavar="LABEL.KEY=VALUE",
            help="of a URL: model, tokenizer and max_length; key_variable, workers, ... "
            "(repeatable)",
        ),
    ] = None,
    quick: Annotated[bool, typer.Option("--quick", help="reduced sizes, to see it work")] = False,
    limit: Annotated[
        int | None, typer.Option(min=1, help="at most so many items per protocol [all]")
    ] = None,
    shard: Annotated[
        str | None,
        typer.Option(
            metavar="I/N",
            help="only share I of N of the items; the last of N processes with the same --out "
            "puts them together",
        ),
    ] = None,
    max_length: Annotated[
        int | None, typer.Option(min=2, help="longest context in tokens [the model's]")
    ] = None,
    bos: Annotated[
        bool | None,
        typer.Option("--bos/--no-bos", help="begin with BOS [if the tokenizer has one]"),
    ] = None,
    device: DeviceOption = None,
    dtype: AutoDtypeOption = "auto",
    device_map: Annotated[
        str | None,
        typer.Option(help="spread the weights as accelerate does: auto, balanced, ..."),
    ] = None,
    revision: Annotated[
        str | None, typer.Option(help="commit, branch or tag of hub names [main]")
    ] = None,
    trust_remote_code: Annotated[
        bool, typer.Option("--trust-remote-code", help="run the code that comes with a model")
    ] = False,
    verify: VerifyOption = True,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="print the resolved parameters and stop")
    ] = False,
    json_: Annotated[bool, typer.Option("--json", help="print the results as JSON")] = False,
) -> None:
    """Ask models the papers' questions.

    Writes one folder per model and protocol with every answer, the metrics with intervals, and,
    for several models, paired differences with tests. The same command again continues at the
    next item. 'diffattn report OUT' makes a page of it.
    """
    from diffattn.files.destination import require_folder_destination
    from diffattn.lab.cli.screen.progress import ItemProgress
    from diffattn.lab.cli.screen.tables import print_table
    from diffattn.lab.evaluation.registry import parts as chosen_parts
    from diffattn.lab.evaluation.selection import Selection

    selection = Selection.read(shard, limit)
    chosen = chosen_parts(protocols, set_ or [], quick=quick)  # before PyTorch is loaded
    require_folder_destination(out)
    from diffattn.lab.evaluation.quick import QUICK_REACH, shortest_context
    from diffattn.lab.evaluation.session import run_evaluation
    from diffattn.lab.inference.labels import labelled
    from diffattn.lab.report.evaluation.tables import difference_rows, metric_rows, results_json

    models = labelled(model)
    if quick:  # sizes that the shortest of the models can take
        longest = max_length or shortest_context(models.values())
        chosen = chosen_parts(protocols, set_ or [], quick=True, longest=longest)
    if dry_run:
        resolved = {part.variant: part.protocol.parameters() for part in chosen}
        typer.echo(json.dumps({"models": models, "parts": resolved}, indent=2, default=str))
        return
    wanted = len(chosen) * len(models)
    with ItemProgress(wanted) as progress:
        results, comparison = run_evaluation(
            chosen, models, out, device=device, dtype=dtype, max_length=max_length, add_bos=bos,
            verify=verify, selection=selection, revision=revision,
            trust_remote_code=trust_remote_code, device_map=device_map, served=served or [],
            reach=QUICK_REACH if quick and max_length is None else None,
            on_start=progress.on_start, on_progress=progress.on_progress,
            on_message=progress.on_message,
        )  # fmt: skip
    if json_:
        typer.echo(results_json(results, comparison))
    else:
        print_table(metric_rows(results))
        for waiting in [result for result in results if "shard" in result.selection]:
            share = "/".join(map(str, waiting.selection["shard"]))
            typer.echo(
                f"{waiting.model['label']}/{waiting.variant}: share {share} is done, "
                f"{waiting.num_items} items; the last share puts all together."
            )
        if comparison is not None:
            print_table(difference_rows(comparison))
            for sentence in [*comparison.skipped, *comparison.notes]:
                typer.echo(sentence)
        typer.echo(f"Records: {out}")
    shortfalls = []
    if failed := sum(result.num_failed for result in results):
        asked = sum(result.num_items for result in results)
        shortfalls.append(f"{failed} of {asked} items failed (items.jsonl says why)")
    if missing := wanted - len(results):
        shortfalls.append(f"{missing} of {wanted} evaluations could not run (said above)")
    if shortfalls:
        typer.echo(f"diffattn: {', and '.join(shortfalls)}.", err=True)
        raise typer.Exit(1)
