"""``diffattn compare``."""

from pathlib import Path
from typing import Annotated

import typer

_FORMATS = ("table", "csv", "markdown", "latex", "json", "lm-eval")


def compare(
    folders: Annotated[
        list[Path], typer.Argument(metavar="FOLDER...", help="written by 'diffattn evaluate'")
    ],
    baseline: Annotated[
        str | None, typer.Option(metavar="LABEL", help="compare the others with it [the first]")
    ] = None,
    format_: Annotated[
        str,
        typer.Option(
            "--format",
            help="table, csv (every number), markdown, latex, json, or lm-eval (the results file "
            "of lm-evaluation-harness, one per model)",
        ),
    ] = "table",
    out: Annotated[
        Path | None,
        typer.Option(help="file to write instead of printing; for lm-eval a folder"),
    ] = None,
    answers: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE.html", help="also write a page to read every item and answer in"
        ),
    ] = None,
) -> None:
    """Compare models over any number of evaluation folders.

    Models are paired item by item, by seed if they are called NAME-seed0 and so on. What differs
    in protocol version, settings or text, and what is missing or damaged, is named and left out.
    The folders stay as they are.
    """
    from diffattn.errors import ConfigError, did_you_mean
    from diffattn.files.destination import (
        require_folder_destination,
        require_outside,
        require_replaceable,
    )
    from diffattn.lab.report.evaluation import answers as page
    from diffattn.lab.report.evaluation import exports
    from diffattn.lab.report.page.render import beginning

    if format_ not in _FORMATS:
        raise ConfigError(
            f"compare: --format must be one of {', '.join(_FORMATS)}, got {format_!r}."
            f"{did_you_mean(format_, _FORMATS)}"
        )

    def require_own(path: Path) -> None:
        kind = f"a file of 'diffattn compare --format {format_}'"
        require_replaceable(path, exports.BEGINNINGS[format_], kind)

    if format_ == "lm-eval":
        if out is None:
            raise ConfigError("compare: --format lm-eval writes one file per model: name --out.")
        require_folder_destination(out)
    elif out is not None:
        require_own(out)
    if answers is not None:
        command = page.GENERATOR
        require_replaceable(answers, beginning(command), f"a page of '{command} --answers'")
        if out is not None and out.absolute() == answers.absolute():
            raise ConfigError(f"compare: --out and --answers must differ, got {out} twice.")
    for path in (out, answers):
        if path is not None:
            require_outside(path, folders)
    from diffattn.files.io import write_text
    from diffattn.lab.cli.screen.tables import print_table
    from diffattn.lab.evaluation.gather import gather
    from diffattn.lab.report.evaluation.tables import difference_rows, metric_rows, results_json

    found = gather(folders, baseline)
    results = found.results()
    comparison = found.compared() if len(found.labels) > 1 else None
    if format_ == "lm-eval":
        assert out is not None
        by_label = {
            label: [result for result in results if result.model["label"] == label]
            for label in found.labels
        }
        paths = {label: out / label / "results.json" for label, of in by_label.items() if of}
        for path in paths.values():
            require_outside(path, folders)
            require_own(path)
        for label, path in paths.items():
            path.parent.mkdir(parents=True, exist_ok=True)
            write_text(path, exports.harness_text(by_label[label]))
            typer.echo(path)
    elif format_ == "table" and out is None:
        print_table(metric_rows(results))
        if comparison is not None:
            print_table(difference_rows(comparison))
    else:
        makers = {
            "csv": exports.csv_text, "markdown": exports.markdown_text,
            "table": exports.markdown_text, "latex": exports.latex_text, "json": results_json,
        }  # fmt: skip
        text = makers[format_](results, comparison)
        if out is None:
            typer.echo(text.rstrip("\n"))
        else:
            out.parent.mkdir(parents=True, exist_ok=True)
            write_text(out, text)
            typer.echo(out)
    if answers is not None:
        rows = {
            variant: {label: found.rows[label, variant] for label in found.labels if label in of}
            for variant, of in found.answers.items()
        }
        typer.echo(page.write_answers(answers, rows, found.labels))
    left_out = [*comparison.skipped, *comparison.notes] if comparison is not None else []
    new = [sentence for sentence in left_out if not sentence.endswith(tuple(found.gaps))]
    for sentence in dict.fromkeys([*found.gaps, *new]):
        typer.echo(sentence, err=True)
