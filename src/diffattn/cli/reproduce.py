"""``diffattn reproduce``."""

import json
from pathlib import Path
from typing import Annotated, Any

import typer

STUDIES = ("text", "recall")


def reproduce(
    study: Annotated[
        str,
        typer.Argument(help="text (models of real text) or recall (values by key, among noise)"),
    ] = "text",
    scale: Annotated[
        str, typer.Option(help="smoke (a minute), laptop (10 minutes) or study (hours)")
    ] = "laptop",
    out: Annotated[
        Path | None,
        typer.Option(help="study folder; continued if it exists [runs/SCALE, runs/recall-SCALE]"),
    ] = None,
    seeds: Annotated[
        str | None,
        typer.Option(help="comma-separated [0,1,2; smoke: 0; study of recall: 0 to 15]"),
    ] = None,
    set_: Annotated[
        list[str] | None,
        typer.Option(
            "--set", metavar="KEY=VALUE", help="text only, e.g. data.source=texts/ (repeatable)"
        ),
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
    """Compare the four attention types on real text, or on recall.

    Trains matched softmax, DIFF V1, DIFF V2 and Shared DIFF models on the same data and writes
    report.html. The text is your Python's own standard library unless data.source names yours;
    recall makes its own sequences, chooses a learning rate per type, and counts the seeds that
    learn. The same command again continues what was interrupted.
    """
    from diffattn.errors import ConfigError
    from diffattn.models.known_names import check_known
    from diffattn.models.twins import MATCHES
    from diffattn.recipes.catalog import SCALES
    from diffattn.training.settings import read_changes

    # Before torch loads, which takes seconds.
    check_known("reproduce", "study", study, STUDIES)
    numbers = None if seeds is None else parse_seeds(seeds)
    check_known("reproduce", "scale", scale, SCALES)
    where = "ComparisonConfig" if study == "text" else "RecallStudyConfig"
    check_known(where, "match", match, MATCHES)
    if study == "text":
        read_changes(set_ or [])
        _text(scale, out, numbers, set_ or [], match, workers, dry_run, json_)
    elif set_:
        raise ConfigError(f"reproduce recall: --set must be left out, got {set_[0]!r}.")
    else:
        _recall(scale, out, numbers, match, workers, dry_run, json_)


def _text(
    scale: str,
    out: Path | None,
    seeds: tuple[int, ...] | None,
    settings: list[str],
    match: str,
    workers: int | None,
    dry_run: bool,
    as_json: bool,
) -> None:
    from diffattn.cli.progress import RunsProgress
    from diffattn.studies.text import reproduce as study

    config = study.comparison(scale, seeds=seeds, settings=settings, match=match)
    if dry_run:
        _print(config.resolved())
        return
    folder = out or Path("runs") / scale
    members = config.members()
    steps = config.base.train.num_steps
    finished = sum((folder / "runs" / m.config.name / "results.json").exists() for m in members)
    with RunsProgress(len(members) * steps, finished * steps, steps) as progress:
        path = study.reproduce(
            scale, out=folder, seeds=seeds, settings=settings, match=match, workers=workers,
            on_message=progress.on_message, on_progress=progress.on_progress,
        )  # fmt: skip
    _finish(folder, path, as_json)


def _recall(
    scale: str,
    out: Path | None,
    seeds: tuple[int, ...] | None,
    match: str,
    workers: int | None,
    dry_run: bool,
    as_json: bool,
) -> None:
    from diffattn.cli.progress import RunsProgress
    from diffattn.studies.recall import reproduce as study

    config = study.recall_study(scale, seeds=seeds, match=match)
    if dry_run:
        _print(config.resolved())
        return
    folder = out or Path("runs") / f"recall-{scale}"
    # A run that solves its task ends early, so the time left is an upper bound.
    steps = max(task.train.num_steps for task in config.tasks)
    finished = len(list((folder / "runs").glob("*/results.json")))
    with RunsProgress(config.num_runs() * steps, finished * steps, steps) as progress:
        path = study.reproduce_recall(
            scale, out=folder, seeds=seeds, match=match, workers=workers,
            on_message=progress.on_message, on_progress=progress.on_progress,
        )  # fmt: skip
    _finish(folder, path, as_json)


def _print(resolved: dict[str, Any]) -> None:
    typer.echo(json.dumps(resolved, indent=2, ensure_ascii=False))


def _finish(folder: Path, report: Path, as_json: bool) -> None:
    """Print what was found, and where the report lies."""
    if as_json:
        typer.echo((folder / "results.json").read_text(encoding="utf-8"), nl=False)
        return
    from diffattn.report.build import markdown_results

    typer.echo(markdown_results(folder))
    typer.echo(f"Report: {report}")


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
