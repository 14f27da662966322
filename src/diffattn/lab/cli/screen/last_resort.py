"""Unexpected errors: one line for the user, and a file with the traceback."""

import os
import platform
import sys
import tempfile
import traceback

from diffattn import __version__
from diffattn.errors import ConfigError

DEBUG = "DIFFATTN_DEBUG"
"""Environment variable. If it is set, unexpected errors are raised unchanged, as in the tests."""
_LONGEST = 2_000
"""Most characters of a line. Longer lines keep their beginning and end, which has the reason."""
_SECRET_WORDS = ("KEY", "TOKEN", "SECRET", "PASSWORD", "CREDENTIAL")
_MEMORY_WORDS = ("not enough memory", "can't allocate memory", "out of memory", "std::bad_alloc")


def one_line(text: object) -> str:
    """Text on one line, with backslash escapes for what UTF-8 cannot hold."""
    line = " ".join(str(text).split()).encode("utf-8", "backslashreplace").decode()
    return line if len(line) <= _LONGEST else f"{line[: _LONGEST - 500]} ... {line[-500:]}"


def require_text(arguments: list[str]) -> None:
    """Raise ``ConfigError`` if a command-line argument is not UTF-8, or holds a zero byte."""
    for argument in arguments:
        if "\0" in argument or argument.encode("utf-8", "replace").decode() != argument:
            got = ascii(argument) if len(argument) < 200 else f"{argument[:200]!a}..."
            raise ConfigError(f"arguments must be valid UTF-8 without zero bytes, got {got}.")


def describe(error: BaseException) -> str:
    """Describe an unexpected error in a few sentences, with the file of its traceback."""
    reason = one_line(str(error).strip().split("\n")[0])
    # PyTorch has several errors for this, which are told by their names and texts.
    if (
        isinstance(error, MemoryError)
        or type(error).__name__ == "OutOfMemoryError"
        or (isinstance(error, RuntimeError) and any(w in str(error).lower() for w in _MEMORY_WORDS))
    ):
        text = (
            f"out of memory{f' ({reason})' if reason else ''}. Choose smaller sizes, or a machine "
            "with more memory"
        )
    elif isinstance(error, RecursionError):
        text = f"something is nested too deeply to be read ({one_line(error)})"
    else:
        text = f"unexpected {type(error).__name__}: {reason.rstrip('.')}"
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
        return f"The traceback could not be written ({one_line(failure)}); {DEBUG}=1 shows it."
    return f"The traceback is in {one_line(file.name)}; please report it with that file."


def _without_secrets(text: str) -> str:
    """The text without the values of environment variables with names such as ``API_KEY``."""
    for name, value in os.environ.items():
        if len(value) >= 4 and any(word in name.upper() for word in _SECRET_WORDS):
            text = text.replace(value, f"[{name}]")
    return text
