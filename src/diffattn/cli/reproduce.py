"""``diffattn reproduce``."""

import json
from pathlib import Path
from typing import Annotated

import typer


def reproduce(
    scale: Annotated[
        str, typer.Option(help="smoke (a minute), laptop (10 minutes) or study (hours)")
    ] = "laptop",
    out: Annotated[
        Path | None, typer.Option(help="study folder; continued if it exists [runs/SCALE]")
    ] = None,
    seeds: Annotated[
        str | None, typer.Option(help="comma-separated, e.g. 0,1,2 [0,1,2; smoke: 0]")
    ] = None,
    set_: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="KEY=VALUE", help="e.g. data.source=texts/ (repeatable)"),
    ] = None,
    match: Annotated[
        str, typer.Option(help="what the models keep equal: params, heads or attention_flops")
    ] = "params",
    workers: Annotated[
        int | None, typer.Option(min=1, help="one-thread processes side by side [cores, at most 2]")
    ] = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="print the resolved configuration and stop")
    ] = False,
    json_: Annotated[bool, typer.Option("--json", help="print results.json at the end")] = False,
) -> None:
    """Compare the four attention types on real text.

    Trains matched softmax, DIFF V1, DIFF V2 and Shared DIFF models on the same text and writes
    report.html. The text is your Python's own standard library unless data.source names yours.
    The same command again continues what was interrupted.
    """
    from diffattn.cli.progress import RunsProgress
    from diffattn.studies import reproduce as study

    numbers = None if seeds is None else parse_seeds(seeds)
    settings = set_ or []
    config = study.comparison(scale, seeds=numbers, settings=settings, match=match)
    if dry_run:
        typer.echo(json.dumps(config.resolved(), indent=2, ensure_ascii=False))
        return
    folder = out or Path("runs") / scale
    members = config.members()
    steps = config.base.train.num_steps
    finished = sum((folder / "runs" / m.config.name / "results.json").exists() for m in members)
    with RunsProgress(len(members) * steps, finished * steps, steps) as progress:
        path = study.reproduce(
            scale, out=folder, seeds=numbers, settings=settings, match=match, workers=workers,
            say=progress.say, tell=progress.tell,
        )  # fmt: skip
    if json_:
        typer.echo((folder / "results.json").read_text(encoding="utf-8"), nl=False)
        return
    from diffattn.report.tables import markdown_table

    typer.echo(markdown_table(folder))
    typer.echo(f"Report: {path}")


def parse_seeds(text: str) -> tuple[int, ...]:
    """Read ``0,1,2``.

    Raises:
        ConfigError: Not whole numbers.
    """
    from diffattn.errors import ConfigError

    try:
        return tuple(int(part) for part in text.split(","))
    except ValueError as error:
        raise ConfigError(
            f"--seeds: must be whole numbers separated by commas, got {text!r}."
        ) from error
