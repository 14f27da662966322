"""``diffattn analyze``."""

from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import typer

from diffattn.errors import ConfigError, check_known
from diffattn.lab.cli.options import (
    DTYPES,
    BosOption,
    DeviceOption,
    DtypeOption,
    VerifyOption,
    default_out,
    print_json,
    say,
)


def analyze(
    model: Annotated[
        list[str],
        typer.Argument(
            metavar="[LABEL=]MODEL...",
            help="run directories, model folders or hub names, side by side on the same text",
        ),
    ],
    out: Annotated[
        Path | None,
        typer.Option(help="new folder for analysis.json and report.html [runs/analysis-LABEL]"),
    ] = None,
    text: Annotated[str | None, typer.Option(help="text to read")] = None,
    file: Annotated[Path | None, typer.Option(help="file of text to read")] = None,
    data: Annotated[
        str | None,
        typer.Option(help="corpus to read: python, stdlib, a folder, a .jsonl file or hub:NAME"),
    ] = None,
    tokens: Annotated[int, typer.Option(min=2, help="most tokens to read")] = 16_384,
    window_tokens: Annotated[
        int | None,
        typer.Option(
            min=4, help="tokens per sequence, BOS included [1024, or the model's limit if lower]"
        ),
    ] = None,
    bos: BosOption = None,
    device: DeviceOption = None,
    dtype: DtypeOption = "float32",
    verify: VerifyOption = True,
    json_: Annotated[bool, typer.Option("--json", help="print the record as JSON")] = False,
) -> None:
    """Show what models attend to, their activations and their λ.

    Give one of --text, --file and --data. It may be long: whole maps are never held in memory. For
    a run directory, λ over training is shown too. A run without weights shows only that, and needs
    no text.
    """
    from diffattn.files.destination import require_folder_destination
    from diffattn.lab.inference.named_models import labelled
    from diffattn.lab.records.analysis import ANALYSIS_FILE
    from diffattn.lab.records.run import is_claimed, is_log_alone

    check_known("analyze", "dtype", dtype, DTYPES)
    require_folder_destination(out or Path("runs"))
    models = labelled(model, option="MODEL", on_message=say, has_no_folder=is_log_alone)
    out = out or default_out("analysis", models)
    if is_claimed(out, ANALYSIS_FILE, "an analysis"):
        raise ConfigError(
            f"{out}: must not hold an analysis yet, got {ANALYSIS_FILE}. 'diffattn report' makes "
            "its page."
        )
    _require_text(models, text, file, data)
    settings = {"tokens": tokens, "window_tokens": window_tokens, "dtype": dtype}
    settings |= {"device": device, "bos": bos}
    result = _analyze(models, text, data or file, settings, verify)
    result.write(out)
    _show(result, out, json_)


def _require_text(
    models: dict[str, str], text: str | None, file: Path | None, data: str | None
) -> None:
    from diffattn.lab.records.run import is_log_alone

    options = {"--text": text, "--file": file, "--data": data}
    given = [name for name, value in options.items() if value is not None]
    needs_text = not all(is_log_alone(path) for path in models.values())
    if len(given) > 1 or (needs_text and not given):
        got = " and ".join(given) or "none"
        raise ConfigError(f"analyze: one of --text, --file and --data must be given, got {got}.")
    if file is not None and not file.is_file():
        raise ConfigError(f"{file}: must be a text file, got none or something else.")


def _analyze(
    models: dict[str, str],
    text: str | None,
    corpus: str | Path | None,
    settings: dict[str, Any],
    verify: bool,
) -> Any:
    from diffattn.lab.analysis.session import AnalysisSettings, analyze
    from diffattn.lab.cli.screen import ItemProgress
    from diffattn.lab.data.corpora import Document, load_corpus

    def documents() -> Any:
        if text is None:
            return load_corpus(str(corpus.absolute() if isinstance(corpus, Path) else corpus))
        return [Document(name="text", text=text)]

    source = "the text of --text" if text is not None else str(corpus or "no text")
    with ItemProgress(len(models)) as progress:
        return analyze(
            models,
            documents,
            source,
            AnalysisSettings(**settings),
            verify=verify,
            on_start=progress.on_start,
            on_progress=progress.on_progress,
        )


def _show(result: Any, out: Path, json_: bool) -> None:
    from diffattn.lab.cli.screen import print_table
    from diffattn.lab.records.analysis import ANALYSIS_FILE
    from diffattn.lab.report.analysis.page import build_analysis_report
    from diffattn.lab.report.analysis.tables import lambda_rows, notes, summary_rows

    page = build_analysis_report(out)
    if json_:
        print_json(asdict(result))
        return
    print_table(summary_rows(result))
    for row in lambda_rows(result):
        print_table([row])
    for line in (*notes(result), f"Record: {out / ANALYSIS_FILE}", f"Page: {page}"):
        typer.echo(line)
