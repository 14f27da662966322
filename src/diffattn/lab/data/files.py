"""Read text files and folders the same way on every system. Error messages have one line."""

import codecs
import difflib
import json
import os
import stat
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from diffattn.errors import ConfigError, did_you_mean
from diffattn.files.destination import file_kind

MAX_TEXT_BYTES = 1 << 32
"""Largest text of one file. A corpus may be larger."""
OnRead = Callable[[int], None]
"""Called with the number of bytes of each part that was read."""


def normalise_line_ends(value: Any) -> Any:
    r"""Replace ``\r\n`` and ``\r`` by ``\n`` in a text, or in all texts of a JSON value.

    Keys of a JSON value, and other Unicode separators such as U+2028, are not changed.
    """
    if isinstance(value, str):
        return value.replace("\r\n", "\n").replace("\r", "\n") if "\r" in value else value
    if isinstance(value, Mapping):
        return {key: normalise_line_ends(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return type(value)(map(normalise_line_ends, value))
    return value


def read_text(path: Path, encoding: str = "utf-8") -> str | None:
    r"""Text of a regular file with ``\n`` at the end of its lines, without a byte-order mark;
    ``None`` if the file has another encoding, or holds a zero byte and so is no text."""
    require_regular(path, one_text=True)
    return _decode(path.read_bytes(), encoding)


def require_text(path: Path, encoding: str = "utf-8") -> str:
    """As :func:`read_text`, but raise ``ConfigError`` for another encoding or a zero byte."""
    text = read_text(path, encoding)
    if text is None:
        raise ConfigError(
            f"{path}: must be {encoding.upper()} text, got binary data or another encoding."
        )
    return text


def read_lines(path: Path, on_read: OnRead = lambda size: None) -> Iterator[str]:
    """Lines of a UTF-8 file that may be larger than memory, without their ends."""
    require_regular(path)
    with path.open("rb") as lines:
        whole_lines = iter(lambda: lines.readline(MAX_TEXT_BYTES + 1), b"")
        for number, line in enumerate(whole_lines, start=1):
            if len(line) > MAX_TEXT_BYTES:
                raise ConfigError(
                    f"{path}:{number}: a line must have at most {MAX_TEXT_BYTES} bytes, got more."
                )
            on_read(len(line))
            text = _decode(line)
            if text is None:
                raise ConfigError(f"{path}:{number}: must be UTF-8 text, got {line[:40]!r}.")
            yield from text.removesuffix("\n").split("\n")  # several after a lone carriage return


def parse_json(text: str) -> Any:
    r"""The value of a JSON document, with ``\n`` as line ends; ``ValueError`` if it is none."""
    try:
        return normalise_line_ends(json.loads(text))
    except RecursionError as error:
        raise ValueError("nested too deeply") from error


def json_objects(lines: Iterable[str], name: str) -> Iterator[tuple[int, dict[str, Any]]]:
    """Line number, from 1, and object of each line of JSON lines; blank lines are skipped."""
    for number, line in enumerate(lines, start=1):
        if not line.strip():
            continue
        where = f"{name}:{number}"
        try:
            row = parse_json(line)
        except ValueError as error:
            raise ConfigError(f"{where}: must be a JSON object, got {line[:40]!r}.") from error
        if not isinstance(row, dict):
            raise ConfigError(f"{where}: must be a JSON object, got {type(row).__name__}.")
        yield number, row


def relative_files(root: Path, excluded: Callable[[str], bool]) -> list[str]:
    """Sorted posix paths, relative to ``root``, of its regular files; ``excluded`` takes a name."""

    def fail(error: OSError) -> None:
        raise ConfigError(f"{error.filename}: must be readable, got: {error.strerror}.") from error

    files = []
    for folder, subfolders, names in os.walk(root, onerror=fail):
        subfolders[:] = [name for name in subfolders if not excluded(name)]
        paths = (Path(folder, name) for name in names if not excluded(name))
        files += [path.relative_to(root).as_posix() for path in paths if path.is_file()]
    return sorted(files)


def require_path(path: Path) -> None:
    """Raise unless the path is a regular file or a folder; the error suggests a similar path."""
    if (got := _irregular(path)) not in (None, "a folder"):
        raise ConfigError(f"{path}: must be a file or folder, got {got}.")


def require_regular(path: Path, *, one_text: bool = False) -> None:
    """Raise unless the path is a regular file; with ``one_text`` also if it is too large.

    Other kinds are refused because opening a FIFO may block, and reading a device may never end.
    """
    if (got := _irregular(path)) is not None:
        raise ConfigError(f"{path}: must be a regular file, got {got}.")
    if one_text and (size := path.stat().st_size) > MAX_TEXT_BYTES:
        raise ConfigError(
            f"{path}: one text must have at most {MAX_TEXT_BYTES} bytes, got {size}. Split it, or "
            "write its parts as JSON lines."
        )


def near_path(path: Path, *others: str) -> str:
    """Suggest a neighbour of a missing path, or another name, at the end of a message."""
    folder = path.parent
    readable = os.path.isdir(folder) and os.access(folder, os.R_OK | os.X_OK)
    # Only the last components are compared: a long shared folder would make all names similar.
    neighbours = [name for name in os.listdir(folder) if name != path.name] if readable else []
    # The cutoff lets only typing errors through: "tests" is no answer to "my_texts".
    close = difflib.get_close_matches(path.name, [*others, *neighbours], n=1, cutoff=0.82)
    if not close:
        return ""
    return f" Did you mean {close[0] if close[0] in others else str(folder / close[0])!r}?"


def unicode_name(name: str) -> str:
    """Name of a file as valid Unicode; bytes that are not UTF-8 become backslash escapes."""
    return name.encode("utf-8", "backslashreplace").decode()


def _irregular(path: Path) -> str | None:
    """The kind of a path in words, or ``None`` for a regular file; raises if it is missing."""
    try:
        mode = os.stat(path).st_mode
    except (FileNotFoundError, NotADirectoryError, ValueError) as error:  # a zero byte in the name
        raise ConfigError(
            f"{path}: file or folder must exist, got none.{near_path(path)}"
        ) from error
    except OSError as error:
        raise ConfigError(f"{path}: must be readable, got: {error.strerror}.") from error
    return None if stat.S_ISREG(mode) else file_kind(mode)


def _decode(content: bytes, encoding: str = "utf-8") -> str | None:
    """Text with normal line ends; ``None`` for another encoding or a zero byte."""
    try:
        text = content.removeprefix(codecs.BOM_UTF8).decode(encoding)
    except UnicodeDecodeError:
        return None
    return None if "\0" in text else str(normalise_line_ends(text))


def with_known_names(
    row: Mapping[str, Any], columns: Mapping[str, str], where: str
) -> Mapping[str, Any]:
    """Copy some columns of a row to the names that the caller expects; all columns are kept.

    ``columns`` maps an expected name to the name in the row.
    """
    for column in columns.values():
        if column not in row:
            known = sorted(map(str, row))
            raise ConfigError(
                f"{where}: must have the column {column!r} that 'columns' names, got "
                f"{', '.join(known) or 'none'}.{did_you_mean(column, known)}"
            )
    return {**row, **{name: row[column] for name, column in columns.items()}}
