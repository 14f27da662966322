"""The ``diffattn`` command: its commands, and how errors are shown."""

import os
import sys

import typer

from diffattn import __version__
from diffattn.cli import (
    bench,
    check,
    evaluate,
    generate,
    judge,
    list_,
    pack,
    report,
    reproduce,
    train,
)
from diffattn.errors import ConfigError, DiffAttnError, ShapeError

_INTERRUPTED = 130  # what typer makes of Ctrl-C

app = typer.Typer(
    name="diffattn",
    help="Build, train, evaluate and inspect language models with differential attention.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)
app.command("reproduce")(reproduce.reproduce)
app.command("train")(train.train)
app.command("pack")(pack.pack)
app.command("evaluate")(evaluate.evaluate)
app.command("judge")(judge.judge)
app.command("generate")(generate.generate)
app.command("bench")(bench.bench)
app.command("report")(report.report)
app.command("list")(list_.list_)
app.command("check")(check.check)


@app.callback(invoke_without_command=True)
def _version(
    version: bool = typer.Option(False, "--version", help="print the version and exit"),
) -> None:
    if version:
        typer.echo(__version__)
        raise typer.Exit


def main() -> None:
    """Run the command line; one line per error, 1 for failed, 2 for misused."""
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    try:
        app(standalone_mode=True)
    except (ConfigError, ShapeError) as error:
        _fail(error, 2)
    except DiffAttnError as error:
        _fail(error, 1)
    except OSError as error:
        _fail(error, 1)
    except SystemExit as end:
        if end.code == _INTERRUPTED:
            typer.echo(
                "diffattn: interrupted. What was finished is kept: run the same command again.",
                err=True,
            )
        raise


def _fail(error: Exception, status: int) -> None:
    line = " ".join(str(error).split())
    typer.echo(f"diffattn: {line}", err=True)
    sys.exit(status)
