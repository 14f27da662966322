"""``diffattn report``."""

from pathlib import Path
from typing import Annotated

import typer

from diffattn.errors import CheckpointError, ConfigError

_DEFAULT_PAGE = Path("runs/report.html")
"""Default path of the page of several folders, or of none."""
_KINDS = {"study.json": "study", "evaluation.json": "an evaluation", "analysis.json": "an analysis"}


def report(
    folders: Annotated[
        list[Path] | None,
        typer.Argument(
            metavar="[FOLDER]...",
            help="made by 'diffattn reproduce', 'evaluate' or 'analyze'; with several also files "
            "of 'diffattn bench' [the committed ones of this checkout]",
        ),
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option(help="file to write [FOLDER/report.html; of several runs/report.html]"),
    ] = None,
    bench: Annotated[
        list[Path] | None,
        typer.Option(
            metavar="PATH",
            help="record or folder of 'diffattn bench' (repeatable) [for text the committed ones]",
        ),
    ] = None,
    markdown: Annotated[
        bool, typer.Option("--markdown", help="print the results table as Markdown instead")
    ] = False,
) -> None:
    """Build a page from records. One folder gives the page of that study or evaluation. Several, or
    none, give the papers' tables and figures beside the measured ones."""
    from diffattn.files.destination import require_replaceable
    from diffattn.lab.report.build import build_evaluation_report, markdown_results
    from diffattn.lab.report.page.render import GENERATOR, beginning

    if markdown and out is not None:
        raise ConfigError("report: --markdown prints and --out writes the page, got both.")
    if markdown and bench is not None:
        raise ConfigError("report: --bench is for a page, got --markdown too.")
    is_one = folders is not None and len(folders) == 1
    if out is not None or not is_one:  # otherwise the page is written into the folder
        require_replaceable(out or _DEFAULT_PAGE, beginning(GENERATOR), f"a page of '{GENERATOR}'")
    kind = _kind(folders[0]) if folders and is_one else "several or none"
    if kind != "study" and (markdown or bench is not None):
        raise ConfigError(f"report: --markdown and --bench need one study, got {kind}.")
    if folders is None or not is_one:
        _beside_papers(folders or [], out or _DEFAULT_PAGE)
    elif markdown:
        typer.echo(markdown_results(folders[0]), nl=False)
    else:
        from diffattn.lab.report.analysis.page import build_analysis_report
        from diffattn.lab.studies.whole import build_study_page

        if kind == "study":
            page = build_study_page(folders[0], out, benchmarks=bench)
        elif kind == "an analysis":
            page = build_analysis_report(folders[0], out)
        else:
            page = build_evaluation_report(folders[0], out)
        typer.echo(page)


def _kind(folder: Path) -> str:
    """The kind of records in a folder: ``"an analysis"``, ``"an evaluation"`` or ``"study"``."""
    for name, kind in _KINDS.items():
        if (folder / name).exists():
            return kind
    got = "none" if folder.exists() else "no such folder"
    if (folder / "run.json").exists():
        got = "a training run, of which 'diffattn analyze' makes a page"
    raise CheckpointError(f"{folder}: must hold {' or '.join(_KINDS)}, got {got}.")


def _beside_papers(folders: list[Path], out: Path) -> None:
    from diffattn.lab.report.beside_papers import build_papers_report
    from diffattn.lab.report.claims.records import committed_folders
    from diffattn.lab.report.claims.tables import checkout_root

    root = None
    if not folders:
        root = checkout_root()
        if root is None:
            raise ConfigError("report: FOLDER must be given outside of a checkout, got none.")
        folders = committed_folders(root)
    for folder in folders:
        if not folder.exists():
            raise CheckpointError(f"{folder}: must be a folder or file of records, got none.")
    typer.echo(build_papers_report(folders, out, root))
