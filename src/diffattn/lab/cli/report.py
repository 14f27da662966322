"""``diffattn report``."""

from pathlib import Path
from typing import Annotated

import typer


def report(
    folders: Annotated[
        list[Path] | None,
        typer.Argument(
            metavar="[FOLDER]...",
            help="written by 'diffattn reproduce', 'evaluate' or 'analyze'; beside others also "
            "files of 'diffattn bench' [all that this checkout has committed]",
        ),
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option(help="file to write [FOLDER/report.html; of several report.html]"),
    ] = None,
    bench: Annotated[
        list[Path] | None,
        typer.Option(
            metavar="PATH",
            help="record or folder of 'diffattn bench' (repeatable) [the committed ones; for "
            "another study than text none]",
        ),
    ] = None,
    markdown: Annotated[
        bool, typer.Option("--markdown", help="print the results table as Markdown instead")
    ] = False,
) -> None:
    """Build a page from records: of one study or evaluation, or, from several or none, the papers'
    tables and figures beside what was measured."""
    from diffattn.errors import CheckpointError, ConfigError
    from diffattn.files.destination import require_replaceable
    from diffattn.lab.report.analysis.page import build_analysis_report, is_analysis_folder
    from diffattn.lab.report.build import build_evaluation_report, markdown_results
    from diffattn.lab.report.evaluation.files import is_evaluation_folder
    from diffattn.lab.report.page.render import GENERATOR, beginning

    def replaceable(page: Path) -> Path:
        require_replaceable(page, beginning(GENERATOR), f"a page of '{GENERATOR}'")
        return page

    if markdown and out is not None:
        raise ConfigError("report: --markdown prints and --out writes the page, got both.")
    if folders is None or len(folders) != 1:
        if markdown or bench is not None:
            raise ConfigError("report: --markdown and --bench need one study, got several or none.")
        _beside_papers(folders or [], replaceable(out or Path("report.html")))
        return
    (study,) = folders
    if out is not None:  # else the page that lies in the folder
        replaceable(out)
    if is_analysis_folder(study):
        if markdown or bench is not None:
            raise ConfigError("report: --markdown and --bench are for studies, got an analysis.")
        typer.echo(build_analysis_report(study, out))
        return
    if is_evaluation_folder(study):
        if markdown or bench is not None:
            raise ConfigError("report: --markdown and --bench are for studies, got an evaluation.")
        typer.echo(build_evaluation_report(study, out))
        return
    if not (study / "study.json").exists():
        is_run = (study / "run.json").exists()
        got = "a training run, of which 'diffattn analyze' makes a page" if is_run else "none"
        raise CheckpointError(
            f"{study}: must hold study.json, evaluation.json or analysis.json, got {got}."
        )
    if markdown:
        typer.echo(markdown_results(study), nl=False)
        return
    from diffattn.lab.studies.page import build_study_page

    typer.echo(build_study_page(study, out, benchmarks=bench))


def _beside_papers(folders: list[Path], out: Path) -> None:
    from diffattn.errors import CheckpointError, ConfigError
    from diffattn.lab.report.beside_papers import build_papers_report
    from diffattn.lab.report.claims.records import committed_folders
    from diffattn.lab.report.claims.tables import committed_claims

    root = None
    if not folders:
        root = committed_claims()
        if root is None:
            raise ConfigError("report: FOLDER must be given outside of a checkout, got none.")
        folders = committed_folders(root)
    for folder in folders:
        if not folder.exists():
            raise CheckpointError(f"{folder}: must be a folder or file of records, got none.")
    typer.echo(build_papers_report(folders, out, root))
