"""``diffattn judge``."""

import json
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer


def judge(
    evaluation: Annotated[Path, typer.Argument(help="folder that 'evaluate hallucination' wrote")],
    model: Annotated[
        str | None,
        typer.Option(help="the judge: its name at --endpoint, or a local model folder or hub name"),
    ] = None,
    endpoint: Annotated[
        str | None,
        typer.Option(metavar="URL", help="OpenAI-compatible server, e.g. https://host/v1"),
    ] = None,
    replies: Annotated[
        Path | None, typer.Option(help="JSON lines of 'id' and 'reply' obtained elsewhere")
    ] = None,
    requests: Annotated[
        Path | None, typer.Option(help="write the requests there as JSON lines, and stop")
    ] = None,
    set_: Annotated[
        list[str] | None,
        typer.Option(
            "--set", metavar="KEY=VALUE", help="e.g. key_variable=OPENAI_API_KEY (repeatable)"
        ),
    ] = None,
    device: Annotated[str | None, typer.Option(help="of a local judge [cuda if there]")] = None,
    dtype: Annotated[str, typer.Option(help="of a local judge")] = "auto",
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="print the settings and what would be asked")
    ] = False,
    json_: Annotated[bool, typer.Option("--json", help="print the results as JSON")] = False,
) -> None:
    """Judge recorded outputs against their documents.

    Another model reads document and output and says whether the one supports the other. Needs the
    evaluation folder only, not the models. Every request and reply is kept; the same command
    again asks for what is missing. Another judge gets results of its own beside these.
    """
    from diffattn.errors import ConfigError
    from diffattn.files.destination import (
        require_folder_destination,
        require_outside,
        require_replaceable,
    )
    from diffattn.files.io import write_plain_jsonl
    from diffattn.lab.evaluation.judge.interface import judge_settings
    from diffattn.lab.evaluation.judge.requests import BEGINNING, recorded_outputs

    if model is None and requests is None:
        raise ConfigError("judge: --model or --requests must be given, got neither.")
    if replies is not None and endpoint is not None:
        raise ConfigError("judge: --replies or --endpoint must be given, got both.")
    require_folder_destination(evaluation)
    if requests is not None:
        require_replaceable(requests, BEGINNING, "a file of 'diffattn judge --requests'")
        require_outside(requests, [evaluation])
    if replies is not None and not replies.is_file():
        raise ConfigError(f"{replies}: must be a file of replies, got none or something else.")
    settings = judge_settings("any" if model is None else model, endpoint, set_ or [])
    recorded = recorded_outputs(evaluation)
    if requests is not None or dry_run:
        asked = [request for part in recorded for request in part.requests(settings.document)]
        if requests is not None and not dry_run:
            write_plain_jsonl(requests, [request.plain() for request in asked])
            typer.echo(f"{len(asked)} requests: {requests}")
        else:
            shown = asdict(settings) | settings.facts()  # of the endpoint no query
            typer.echo(json.dumps({"requests": len(asked), "judge": shown}, indent=2))
        return

    from diffattn.lab.cli.screen.progress import ItemProgress
    from diffattn.lab.cli.screen.tables import print_table
    from diffattn.lab.evaluation.compare import compare_folder
    from diffattn.lab.evaluation.judge.judges import chosen_judge
    from diffattn.lab.evaluation.judge.session import judge_folder
    from diffattn.lab.report.evaluation.tables import difference_rows, metric_rows, results_json

    asked_judge = chosen_judge(settings, replies=replies, device=device, dtype=dtype)
    with ItemProgress(len(recorded)) as progress:
        judged = judge_folder(evaluation, asked_judge, settings, on_progress=progress.on_progress)
    results, comparison = judged.results, compare_folder(evaluation)
    if json_:
        typer.echo(results_json(results, comparison))
    else:
        print_table(metric_rows(results))
        if comparison is not None:
            judged_parts = {result.variant for result in results}
            rows = difference_rows(comparison)
            print_table([row for row in rows if row["protocol"] in judged_parts])
        typer.echo(f"Records: {evaluation}")
    for sentence in judged.missing:
        typer.echo(f"diffattn: {sentence}", err=True)
    failed = sum(result.num_failed for result in results)
    if failed:
        typer.echo(
            f"diffattn: no verdict on {failed} of {sum(r.num_items for r in results)} outputs; "
            "the same command asks again, replies.jsonl says why.",
            err=True,
        )
    if failed or judged.missing:
        raise typer.Exit(1)
