"""``diffattn report``."""

from pathlib import Path
from typing import Annotated

import typer


def report(
    study: Annotated[Path, typer.Argument(help="folder written by 'diffattn reproduce'")],
    out: Annotated[Path | None, typer.Option(help="file to write [STUDY/report.html]")] = None,
    markdown: Annotated[bool, typer.Option(help="print the results table as Markdown")] = False,
) -> None:
    """Build the report of a study from its records alone; no model is loaded."""
    from diffattn.report.build import build_report
    from diffattn.report.tables import markdown_table

    if markdown:
        typer.echo(markdown_table(study))
        return
    from diffattn.studies.reproduce import published_beside

    typer.echo(build_report(study, out, published=published_beside(study)))
