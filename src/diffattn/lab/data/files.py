"""Read text files and folders the same way on every system. Error messages have one line."""

import codecs
import difflib
import hashlib
import io
import itertools
import json
import os
import stat
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from diffattn.errors import ConfigError, did_you_mean
from diffattn.files.destination import file_kind

MAX_TEXT_BYTES = 1 << 32
"""Largest text: bytes of a file, or characters of a line of JSON lines. A corpus may be larger."""

_CHUNK_BYTES = 1 << 20
OnRead = Callable[[int], None]
"""Called with the number of bytes of each chunk that was read."""


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
    content = b"".join(_chunks(path, one_text=True)).removeprefix(codecs.BOM_UTF8)
    try:
        return None if b"\0" in content else str(normalise_line_ends(content.decode(encoding)))
    except UnicodeDecodeError:
        return None


def require_text(path: Path, encoding: str = "utf-8") -> str:
    """As :func:`read_text`, but raise ``ConfigError`` for another encoding or a zero byte."""
    text = read_text(path, encoding)
    if text is None:
        raise ConfigError(
            f"{path}: must be {encoding.upper()} text, got binary data or another encoding."
        )
    return text


def read_lines(path: Path, on_read: OnRead = lambda size: None) -> Iterator[str]:
    r"""Lines of a UTF-8 file that may be larger than memory, without their ends."""
    # Bytes that are not UTF-8 become surrogates, so that the error can give the line's number.
    utf_8 = codecs.getincrementaldecoder("utf-8-sig")("surrogateescape")
    decoder = io.IncrementalNewlineDecoder(utf_8, translate=True)
    parts: list[str] = []
    number = size = 0
    for chunk in itertools.chain(_chunks(path, one_text=False), (b"",)):
        on_read(len(chunk))
        first, *others = decoder.decode(chunk, final=not chunk).split("\n")
        parts.append(first)
        size += len(first)
        for other in others:
            number += 1
            yield _line(path, number, parts)
            parts, size = [other], len(other)
        if size > MAX_TEXT_BYTES or b"\0" in chunk:
            got = "binary data" if b"\0" in chunk else "a longer one"
            raise ConfigError(
                f"{path}:{number + 1}: must be a line of UTF-8 text of at most {MAX_TEXT_BYTES} "
                f"characters, got {got}."
            )
    if size:
        yield _line(path, number + 1, parts)


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


def fingerprint(path: Path) -> dict[str, int | str]:
    """``bytes`` (size) and ``sha256`` (hexadecimal) of a regular file."""
    digest, size = hashlib.sha256(), 0
    for chunk in _chunks(path, one_text=False):
        digest.update(chunk)
        size += len(chunk)
    return {"bytes": size, "sha256": digest.hexdigest()}


def require_path(path: Path) -> None:
    """Raise unless the path is a regular file or a folder; the error suggests a similar path."""
    if _irregular(path) not in (None, "a folder"):
        raise ConfigError(f"{path}: must be a file or folder, got {_irregular(path)}.")


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
        raise _unreadable(path, error) from error
    return None if stat.S_ISREG(mode) else file_kind(mode)


def _chunks(path: Path, *, one_text: bool) -> Iterator[bytes]:
    """Bytes of a regular file up to its size when opened: it may grow, or never end (/proc)."""
    require_regular(path, one_text=one_text)
    try:
        with path.open("rb") as file:
            left = os.fstat(file.fileno()).st_size
            while left and (chunk := file.read(min(left, _CHUNK_BYTES))):
                left -= len(chunk)
                yield chunk
    except OSError as error:
        raise _unreadable(path, error) from error


def _line(path: Path, number: int, parts: list[str]) -> str:
    line = "".join(parts)
    try:
        line.encode()
    except UnicodeEncodeError as error:
        got = line[:40].encode("utf-8", "surrogateescape")
        raise ConfigError(f"{path}:{number}: must be UTF-8 text, got {got!r}.") from error
    return line


def _unreadable(path: Path, error: OSError) -> ConfigError:
    return ConfigError(f"{path}: must be readable, got: {error.strerror}.")


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
