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
    from diffattn.records.destination import require_file_destination, require_folder_destination

    if format_ not in _FORMATS:
        raise ConfigError(
            f"compare: --format must be one of {', '.join(_FORMATS)}, got {format_!r}."
            f"{did_you_mean(format_, _FORMATS)}"
        )
    if format_ == "lm-eval":
        if out is None:
            raise ConfigError("compare: --format lm-eval writes one file per model: name --out.")
        require_folder_destination(out)
    elif out is not None:
        require_file_destination(out)
    if answers is not None:
        require_file_destination(answers)
    from diffattn.cli.screen.tables import print_table
    from diffattn.evaluation.gather import gather
    from diffattn.records.io import write_text
    from diffattn.report.evaluation import exports
    from diffattn.report.evaluation.answers import write_answers
    from diffattn.report.evaluation.tables import difference_rows, metric_rows, results_json

    found = gather(folders, baseline)
    results = found.results()
    comparison = found.compared() if len(found.labels) > 1 else None
    if format_ == "lm-eval":
        assert out is not None
        for label in found.labels:
            of_model = [result for result in results if result.model["label"] == label]
            if of_model:
                path = out / label / "results.json"
                path.parent.mkdir(parents=True, exist_ok=True)
                write_text(path, exports.harness_text(of_model))
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
        typer.echo(write_answers(answers, rows, found.labels))
    left_out = [*comparison.skipped, *comparison.notes] if comparison is not None else []
    new = [sentence for sentence in left_out if not sentence.endswith(tuple(found.gaps))]
    for sentence in dict.fromkeys([*found.gaps, *new]):
        typer.echo(sentence, err=True)
