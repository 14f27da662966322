"""``diffattn compare``."""

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from diffattn.errors import ConfigError, check_known

_FORMATS = ("table", "csv", "markdown", "json", "lm-eval")


def compare(
    folders: Annotated[
        list[Path], typer.Argument(metavar="FOLDER...", help="made by 'diffattn evaluate'")
    ],
    baseline: Annotated[
        str | None,
        typer.Option(metavar="LABEL", help="model to compare the others with [the first]"),
    ] = None,
    format_: Annotated[
        str,
        typer.Option(
            "--format",
            help="table, csv (every number), markdown, json, or lm-eval (the results file "
            "of lm-evaluation-harness, one per model)",
        ),
    ] = "table",
    out: Annotated[
        Path | None, typer.Option(help="file to write instead of printing; for lm-eval a folder")
    ] = None,
    answers: Annotated[
        Path | None,
        typer.Option(metavar="FILE.html", help="also write a page of all items and answers"),
    ] = None,
) -> None:
    """Compare models over any number of evaluation folders.

    Models are paired item by item, and by seed if they are called NAME-seed0 and so on. Results
    that differ in protocol version, settings or text are named and left out; so are missing and
    damaged ones. The folders are not changed.
    """
    _require_destinations(folders, format_, out, answers)
    from diffattn.lab.evaluation.compare import gather
    from diffattn.lab.report.evaluation.answers import write_answers

    gathered = gather(folders, baseline)
    results = gathered.results()
    comparison = gathered.compared() if len(gathered.labels) > 1 else None
    if format_ == "lm-eval":
        assert out is not None
        _write_harness_files(results, gathered.labels, out, folders)
    else:
        _print_or_write(results, comparison, format_, out)
    if answers is not None:
        rows = {
            variant: {label: sides[label].every for label in gathered.labels if label in sides}
            for variant, sides in gathered.answers.items()
        }
        typer.echo(write_answers(answers, rows, gathered.labels))
    left_out = [*comparison.skipped, *comparison.notes] if comparison is not None else []
    new = [sentence for sentence in left_out if not sentence.endswith(tuple(gathered.gaps))]
    for sentence in dict.fromkeys([*gathered.gaps, *new]):
        typer.echo(sentence, err=True)


def _require_destinations(
    folders: Sequence[Path], format_: str, out: Path | None, answers: Path | None
) -> None:
    from diffattn.files.destination import (
        require_folder_destination,
        require_outside,
        require_replaceable,
    )
    from diffattn.lab.report.evaluation.answers import GENERATOR
    from diffattn.lab.report.page.render import beginning

    check_known("compare", "--format", format_, _FORMATS)
    if format_ == "lm-eval":
        if out is None:
            raise ConfigError("compare: --format lm-eval writes one file per model: name --out.")
        require_folder_destination(out)
    elif out is not None:
        _require_table(out, format_)
    if answers is not None:
        require_replaceable(answers, beginning(GENERATOR), f"a page of '{GENERATOR} --answers'")
        if out is not None and out.absolute() == answers.absolute():
            raise ConfigError(f"compare: --out and --answers must differ, got {out} twice.")
    for path in (out, answers):
        if path is not None:
            require_outside(path, folders)


def _require_table(path: Path, format_: str) -> None:
    """Raise if the file exists and was not written by an earlier call with this format."""
    from diffattn.files.destination import require_replaceable
    from diffattn.lab.report.evaluation.tables import BEGINNINGS

    kind = f"a file of 'diffattn compare --format {format_}'"
    require_replaceable(path, BEGINNINGS[format_], kind)


def _write_harness_files(
    results: Sequence[Any], labels: Sequence[str], out: Path, folders: Sequence[Path]
) -> None:
    from diffattn.files.destination import require_outside
    from diffattn.files.io import write_text
    from diffattn.lab.report.evaluation.tables import harness_text

    by_label = {
        label: [result for result in results if result.model["label"] == label] for label in labels
    }
    paths = {label: out / label / "results.json" for label, results in by_label.items() if results}
    for path in paths.values():
        require_outside(path, folders)
        _require_table(path, "lm-eval")
    for label, path in paths.items():
        write_text(path, harness_text(by_label[label]))
        typer.echo(path)


def _print_or_write(
    results: Sequence[Any], comparison: Any, format_: str, out: Path | None
) -> None:
    from diffattn.files.io import write_text
    from diffattn.lab.cli.screen import print_table
    from diffattn.lab.report.evaluation import tables

    if format_ == "table" and out is None:
        print_table(tables.metric_rows(results))
        if comparison is not None:
            print_table(tables.difference_rows(comparison))
        return
    makers = {"csv": tables.csv_text, "json": tables.results_json}  # else Markdown
    text = makers.get(format_, tables.markdown_text)(results, comparison)
    if out is None:
        typer.echo(text.rstrip("\n"))
    else:
        write_text(out, text)
        typer.echo(out)
