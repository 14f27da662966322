"""The ``diffattn`` command: its commands, and how errors are shown."""

import errno
import io
import os
import platform
import shlex
import sys
import tempfile
import traceback
import warnings
from importlib import import_module
from typing import Any

import typer

from diffattn import __version__
from diffattn.errors import ConfigError, DiffAttnError, ShapeError
from diffattn.lab.cli.options import say

DEBUG = "DIFFATTN_DEBUG"
"""Environment variable. If it is set, unexpected errors are not caught; the tests set it."""
_LONGEST = 2_000
"""Most characters of a line. Longer ones are cut in the middle: the reason is often at the end."""
_SECRET_WORDS = ("KEY", "TOKEN", "SECRET", "PASSWORD", "CREDENTIAL")
_MEMORY_WORDS = ("not enough memory", "can't allocate memory", "out of memory", "std::bad_alloc")
_INTERRUPTED = 130  # what typer makes of Ctrl-C
_RESUMABLE = ("reproduce", "train", "pack", "evaluate", "judge", "bench")
"""Commands that continue where they were stopped."""
_UsageError: type[Exception] = typer.BadParameter.__mro__[1]  # of click, or of typer's copy

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
    """Run the command line; show an error as one line.

    Exit status: 0 done, 1 failed, 2 wrong use, 130 stopped by Ctrl-C, 143 stopped by SIGTERM.
    """
    if sys.argv[1:2] != ["pack"]:  # packing encodes on all threads and never forks
        os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):  # names of files may be any bytes
            stream.reconfigure(errors="backslashreplace")
    # One line, without the warning's place in the source.
    warnings.showwarning = lambda message, *_, **__: say(f"warning: {_one_line(message)}")
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
    """Run the command, show its error, and return the exit status."""
    try:
        _require_text(sys.argv[1:])
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
        if hasattr(end, "state"):  # of Terminated, which only commands that train import
            return _stop(end.state, int(end.code or 0))
        status = end.code or 0
    except Exception as error:
        if os.environ.get(DEBUG):
            raise
        return _fail(_describe(error), 1)
    return _stop("", _INTERRUPTED) if status == _INTERRUPTED else int(status)


def _stop(state: str, status: int) -> int:
    """Say how to continue a command that was stopped; ``state``: how far it came, or empty."""
    if not sys.argv[1:] or sys.argv[1] not in _RESUMABLE:
        return _fail("stopped.", status)
    is_launched = "TORCHELASTIC_RUN_ID" in os.environ  # torchrun's part is not in sys.argv
    again = "the same command." if is_launched else shlex.join(["diffattn", *sys.argv[1:]])
    return _fail(f"{state or 'stopped'}; what was done is kept. Go on with: {again}", status)


def _fail(error: Exception | str, status: int) -> int:
    say(f"diffattn: {_one_line(error)}")
    return status


def _misused(error: Any) -> int:
    if type(error).__name__ == "NoArgsIsHelpError":
        error.show()
        return int(error.exit_code)
    command = "diffattn" if error.ctx is None else error.ctx.command_path
    message = error.format_message().rstrip(". ")
    stop = "" if message.endswith("?") else "."
    return _fail(f"{message}{stop} See '{command} --help'.", int(error.exit_code))


def _one_line(text: object) -> str:
    """Text on one line, with backslash escapes for what UTF-8 cannot hold."""
    line = " ".join(str(text).split()).encode("utf-8", "backslashreplace").decode()
    return line if len(line) <= _LONGEST else f"{line[: _LONGEST - 500]} ... {line[-500:]}"


def _require_text(arguments: list[str]) -> None:
    """Raise ``ConfigError`` if a command-line argument is not UTF-8, or holds a zero byte."""
    for argument in arguments:
        if "\0" in argument or argument.encode("utf-8", "replace").decode() != argument:
            got = ascii(argument) if len(argument) < 200 else f"{argument[:200]!a}..."
            raise ConfigError(f"arguments must be valid UTF-8 without zero bytes, got {got}.")


def _describe(error: BaseException) -> str:
    """Describe an unexpected error in a few sentences, with the file of its traceback."""
    reason = _one_line(str(error).strip().split("\n")[0])
    name = type(error).__name__
    content = str(error).lower() if isinstance(error, RuntimeError) else ""
    # PyTorch has several errors for this, recognised by their names and texts.
    if name.endswith("MemoryError") or any(words in content for words in _MEMORY_WORDS):
        text = f"out of memory{f' ({reason})' if reason else ''}. "
        text += "Choose smaller sizes, or a machine with more memory"
    elif isinstance(error, RecursionError):
        text = f"something is nested too deeply to be read ({reason})"
    else:
        text = f"unexpected {name}: {reason}".rstrip(":. ")
    return _without_secrets(f"{text}. {_log(error)}")


def _log(error: BaseException) -> str:
    """Write the traceback to a temporary file, and return a sentence that names the file."""
    report = (
        f"diffattn {__version__}, Python {platform.python_version()}, {platform.platform()}\n"
        f"{sys.argv!r}\n\n{''.join(traceback.format_exception(error))}"
    )
    try:
        with tempfile.NamedTemporaryFile(prefix="diffattn-", suffix=".log", delete=False) as file:
            file.write(_without_secrets(report).encode("utf-8", "backslashreplace"))
    except OSError as failure:  # even if the disk is full, the error itself must be shown
        return f"The traceback could not be written ({_one_line(failure)}); {DEBUG}=1 shows it."
    return f"The traceback is in {_one_line(file.name)}; please report it with that file."


def _without_secrets(text: str) -> str:
    """The text without the values of environment variables with names such as ``API_KEY``."""
    for name, value in os.environ.items():
        is_secret = any(word in name.upper() for word in _SECRET_WORDS)
        if is_secret and len(value) >= 4 and value.lower() not in ("true", "false"):
            text = text.replace(value, f"[{name}]")
    return text
