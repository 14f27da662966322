"""``diffattn analyze``."""

import json
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import typer

from diffattn.lab.cli.options import DTYPES, DeviceOption, DtypeOption, VerifyOption


def analyze(
    model: Annotated[
        list[str],
        typer.Argument(
            metavar="[LABEL=]MODEL...",
            help="run directories, model folders or hub names, side by side on the same text",
        ),
    ],
    out: Annotated[Path, typer.Option(help="new folder for analysis.json and report.html")],
    text: Annotated[str | None, typer.Option(help="text to read")] = None,
    file: Annotated[Path | None, typer.Option(help="file of text to read")] = None,
    data: Annotated[
        str | None,
        typer.Option(help="corpus to read: python, stdlib, a folder, a .jsonl file or hub:NAME"),
    ] = None,
    tokens: Annotated[int, typer.Option(min=2, help="read at most so many tokens")] = 16_384,
    window_tokens: Annotated[
        int | None,
        typer.Option(min=4, help="of one sequence, BOS included [1024, or what the model takes]"),
    ] = None,
    bos: Annotated[
        bool | None,
        typer.Option("--bos/--no-bos", help="begin with BOS [if the tokenizer has one]"),
    ] = None,
    device: DeviceOption = None,
    dtype: DtypeOption = "float32",
    verify: VerifyOption = True,
    json_: Annotated[bool, typer.Option("--json", help="print the record as JSON")] = False,
) -> None:
    """Show what models attend to, how large their activations are, and their λ.

    Reads one of --text, --file and --data, of any length: no whole map is held in memory. Of a run
    directory λ over training is shown, too; one without weights has that alone and needs no text.
    """
    from diffattn.errors import ConfigError
    from diffattn.files.destination import require_folder_destination
    from diffattn.lab.analysis.run_folders import is_log_alone
    from diffattn.lab.inference.labels import labelled
    from diffattn.lab.records.analysis import ANALYSIS_FILE
    from diffattn.lab.records.claim import is_claimed
    from diffattn.models.checkpoint_folder import checkpoint_folder
    from diffattn.models.config.known_names import check_known

    models = labelled(model, option="MODEL")
    given = {"--text": text, "--file": file, "--data": data}
    named = [name for name, value in given.items() if value is not None]
    with_weights = [path for path in models.values() if not is_log_alone(path)]
    if len(named) > 1 or (with_weights and not named):
        got = " and ".join(named) or "none"
        raise ConfigError(f"analyze: one of --text, --file and --data must be given, got {got}.")
    if file is not None and not file.is_file():
        raise ConfigError(f"{file}: must be a file of text, got none or something else.")
    check_known("analyze", "dtype", dtype, DTYPES)
    require_folder_destination(out)
    if is_claimed(out, ANALYSIS_FILE, "an analysis"):
        raise ConfigError(
            f"{out}: must not hold an analysis yet, got {ANALYSIS_FILE}. 'diffattn report' makes "
            "its page."
        )
    for path in with_weights:
        checkpoint_folder(path)
    from diffattn.lab.data.corpora import Document, load_corpus
    from diffattn.lab.data.files import normalise_line_ends

    def documents() -> Any:
        if text is not None:
            return [Document(name="text", text=normalise_line_ends(text))]
        return load_corpus(data or str(file))

    from diffattn.lab.analysis.session import AnalysisSettings
    from diffattn.lab.analysis.session import analyze as run_analysis
    from diffattn.lab.cli.screen.progress import ItemProgress
    from diffattn.lab.cli.screen.tables import print_table
    from diffattn.lab.report.analysis.page import build_analysis_report
    from diffattn.lab.report.analysis.tables import lambda_rows, notes, summary_rows

    settings = AnalysisSettings(
        tokens=tokens, window_tokens=window_tokens, dtype=dtype, device=device, bos=bos
    )
    source = "the text of --text" if text is not None else str(data or file or "no text")
    with ItemProgress(len(models)) as progress:
        result = run_analysis(
            models, documents, source, settings, verify=verify,
            on_start=progress.on_start, on_progress=progress.on_progress,
        )  # fmt: skip
    result.write(out)
    page = build_analysis_report(out)
    if json_:
        typer.echo(json.dumps(asdict(result), indent=2, ensure_ascii=False))
        return
    print_table(summary_rows(result))
    for row in lambda_rows(result):
        print_table([row])
    for sentence in notes(result):
        typer.echo(sentence)
    typer.echo(f"Record: {out / ANALYSIS_FILE}")
    typer.echo(f"Page: {page}")
