"""``diffattn judge``."""

from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import typer

from diffattn.errors import ConfigError
from diffattn.lab.cli.evaluate import print_results
from diffattn.lab.cli.options import print_json, say, set_option

_Model = Annotated[
    str | None,
    typer.Option(help="the judge: its name at --endpoint, or a local model folder or hub name"),
]
_Endpoint = Annotated[
    str | None, typer.Option(metavar="URL", help="OpenAI-compatible server, e.g. https://host/v1")
]
_Replies = Annotated[
    Path | None, typer.Option(help="JSON lines with 'id' and 'reply', if another program asked")
]
_Requests = Annotated[
    Path | None, typer.Option(help="write the requests to this file as JSON lines and stop")
]
_Settings = Annotated[list[str] | None, set_option("e.g. key_variable=OPENAI_API_KEY (repeatable)")]
_DryRun = Annotated[
    bool, typer.Option("--dry-run", help="print the settings and the number of requests and stop")
]


def judge(
    evaluation: Annotated[Path, typer.Argument(help="folder that 'evaluate hallucination' wrote")],
    model: _Model = None,
    endpoint: _Endpoint = None,
    replies: _Replies = None,
    requests: _Requests = None,
    set_: _Settings = None,
    device: Annotated[str | None, typer.Option(help="of a local judge [cuda if available]")] = None,
    dtype: Annotated[str, typer.Option(help="of a local judge")] = "auto",
    dry_run: _DryRun = False,
    json_: Annotated[bool, typer.Option("--json", help="print the results as JSON")] = False,
) -> None:
    """Judge recorded outputs against their documents.

    Another model, the judge, reads a document and an output and says whether the document supports
    the output. This needs the evaluation folder, not the evaluated models. Every request and reply
    is kept; the same command again makes the missing requests. Each judge has its own results.
    """
    from diffattn.files.io import write_plain_jsonl
    from diffattn.lab.evaluation.judge.interface import judge_settings
    from diffattn.lab.evaluation.judge.session import recorded_outputs

    _require_options(evaluation, model, endpoint, replies, requests)
    settings = judge_settings("any" if model is None else model, endpoint, set_ or [])
    recorded = recorded_outputs(evaluation)
    if requests is not None or dry_run:
        asked = [request for part in recorded for request in part.requests(settings.document)]
        if requests is not None and not dry_run:
            write_plain_jsonl(requests, [request.plain() for request in asked])
            typer.echo(f"{len(asked)} requests: {requests}")
        else:
            shown = asdict(settings) | settings.facts()  # facts have the URL without its query
            print_json({"requests": len(asked), "judge": shown})
        return
    from diffattn.lab.cli.screen import ItemProgress
    from diffattn.lab.evaluation.compare import compare_folder
    from diffattn.lab.evaluation.judge.judges import chosen_judge
    from diffattn.lab.evaluation.judge.session import judge_folder

    chosen = chosen_judge(settings, replies, device, dtype)
    with ItemProgress(len(recorded)) as progress:
        results, missing = judge_folder(evaluation, chosen, on_progress=progress.on_progress)
    print_results(results, compare_folder(evaluation), evaluation, as_json=json_)
    _exit_if_incomplete(results, missing)


def _require_options(
    evaluation: Path,
    model: str | None,
    endpoint: str | None,
    replies: Path | None,
    requests: Path | None,
) -> None:
    from diffattn.files.destination import (
        require_folder_destination,
        require_outside,
        require_replaceable,
    )
    from diffattn.lab.evaluation.judge.session import BEGINNING

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


def _exit_if_incomplete(results: Any, missing: list[str]) -> None:
    for sentence in missing:
        say(f"diffattn: {sentence}")
    failed = sum(result.num_failed for result in results)
    if failed:
        say(
            f"diffattn: no verdict on {failed} of {sum(r.num_items for r in results)} outputs; "
            "the same command asks again, replies.jsonl says why."
        )
    if failed or missing:
        raise typer.Exit(1)
