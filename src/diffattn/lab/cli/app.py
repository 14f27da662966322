"""The ``diffattn`` command: its commands, and how errors are shown."""

import errno
import io
import os
import shlex
import sys
import warnings
from importlib import import_module
from typing import Any

import typer

from diffattn import __version__
from diffattn.errors import ConfigError, DiffAttnError, ShapeError
from diffattn.lab.cli.options import say
from diffattn.lab.cli.screen.last_resort import DEBUG, describe, one_line, require_text

_INTERRUPTED = 130  # what typer makes of Ctrl-C
_RESUMABLE = ("reproduce", "train", "pack", "evaluate", "judge", "bench")
"""Commands that continue where they were stopped."""
_UsageError: type[Exception] = typer.BadParameter.__mro__[1]  # not exported by typer itself

app = typer.Typer(
    name="diffattn",
    help="Build, train, evaluate and inspect language models with differential attention.",
    epilog="An unexpected error is one line with the name of a file that has the traceback. "
    f"With {DEBUG}=1 the traceback is shown.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)
for _name in (
    *("reproduce", "train", "plan", "pack", "evaluate", "compare", "analyze", "judge", "convert"),
    *("generate", "inspect_", "bench", "fit", "report", "list_", "check"),
):
    _module = import_module(f"diffattn.lab.cli.{_name}")
    app.command(_name.rstrip("_"))(getattr(_module, _name))


@app.callback(invoke_without_command=True)
def _version(
    version: bool = typer.Option(False, "--version", help="print the version and exit"),
) -> None:
    if version:
        typer.echo(__version__)
        raise typer.Exit


def main() -> None:
    """Run the command line; an error is one line.

    Exit status: 0 done, 1 failed, 2 wrong use, 130 stopped by Ctrl-C, 143 stopped by SIGTERM.
    """
    if sys.argv[1:2] != ["pack"]:  # it encodes on all threads and never forks
        os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):  # names of files may be any bytes
            stream.reconfigure(errors="backslashreplace")
    # One line, without the warning's place in the source.
    warnings.showwarning = lambda message, *_, **__: say(f"warning: {one_line(message)}")
    try:
        status = _run()
        if sys.stdout is not None:  # it is None if the caller closed it
            sys.stdout.flush()
    except BrokenPipeError:  # the reader of our output has gone, as ``head`` does
        # Python would complain of buffered output when it ends.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        status = 1
    sys.exit(status)


def _run() -> int:
    """The exit status of the command, its error shown."""
    try:
        require_text(sys.argv[1:])
        status = app(standalone_mode=False) or 0
    except BrokenPipeError:
        raise
    except DiffAttnError as error:
        return _fail(error, 2 if isinstance(error, ConfigError | ShapeError) else 1)
    except OSError as error:  # a name that is too long is the user's mistake
        text = f"{error.filename}: {error.strerror}." if error.filename else error
        return _fail(text, 2 if error.errno == errno.ENAMETOOLONG else 1)
    except _UsageError as error:
        return _misused(error)
    except KeyboardInterrupt:
        status = _INTERRUPTED
    except SystemExit as end:  # by typer, after a broken pipe; or by a run that was stopped
        if hasattr(end, "state"):
            return _stop(end.state, int(end.code or 0))
        status = end.code
    except Exception as error:
        if os.environ.get(DEBUG):
            raise
        return _fail(describe(error), 1)
    return _stop("", _INTERRUPTED) if status == _INTERRUPTED else int(status)


def _stop(state: str, status: int) -> int:
    """Say how to continue a command that was stopped; ``state``: what its folder holds."""
    if not set(sys.argv[1:2]) & set(_RESUMABLE):
        return _fail("stopped.", status)
    is_launched = "TORCHELASTIC_RUN_ID" in os.environ  # torchrun's part is not in sys.argv
    again = "the same command." if is_launched else shlex.join(["diffattn", *sys.argv[1:]])
    return _fail(f"{state or 'stopped'}; what was done is kept. Go on with: {again}", status)


def _fail(error: Exception | str, status: int) -> int:
    say(f"diffattn: {one_line(error)}")
    return status


def _misused(error: Any) -> int:
    if type(error).__name__ == "NoArgsIsHelpError":
        error.show()
        return int(error.exit_code)
    command = "diffattn" if error.ctx is None else error.ctx.command_path
    message = error.format_message().rstrip(". ")
    stop = "" if message.endswith("?") else "."
    return _fail(f"{message}{stop} See '{command} --help'.", int(error.exit_code))
