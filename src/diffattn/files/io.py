"""Read and write JSON and JSON-lines records that show when they are damaged.

Every object has a checksum field, and every row of JSON lines its number. The readers check these
fields and remove them. Temporary files are locked while written, so that leftovers are recognised.
"""

import contextlib
import fcntl
import hashlib
import json
import math
import os
import re
import shutil
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import IO, Any, TypeVar

from diffattn.errors import CheckpointError, short

Record = TypeVar("Record")
_CHECKSUM, _NUMBER = "checksum", "row"
_MAX_BYTES = 1 << 32
LOCK = ".lock"
"""The file in a temporary folder that is locked instead of the folder."""


def write_json(path: Path, value: Mapping[str, Any]) -> None:
    """Write ``value`` so that a reader never sees half a file, even after a power failure."""
    write_text(path, json.dumps(sealed(value), indent=2, ensure_ascii=False) + "\n")


def write_text(path: Path, text: str) -> None:
    """Replace ``path`` by ``text`` in one step; on failure the old file stays."""
    make_folder(path.parent)
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    clean_leftovers(path.parent, path.name)
    try:
        with open_locked(temporary) as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
            temporary.replace(path)
            sync(path.parent)
    finally:
        temporary.unlink(missing_ok=True)


def make_folder(path: Path) -> None:
    """Make a folder and its parents, and wait until they are on the disk."""
    if not path.is_dir():
        make_folder(path.parent)
        path.mkdir(exist_ok=True)
        sync(path.parent)


def sync(path: Path) -> None:
    """Wait until a file's content, or a folder's entries, are on the disk."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def read_json(path: Path) -> dict[str, Any]:
    """Read one JSON object that :func:`write_json` wrote."""
    try:
        value = _parsed(_content(path))
    except ValueError as error:
        raise CheckpointError(f"{path}: must be JSON, got a damaged file ({error}).") from error
    if not isinstance(value, dict):
        raise CheckpointError(f"{path}: must be a JSON object, got a {type(value).__name__}.")
    return opened(value, str(path))


def read_record(
    path: Path, kind: str, schema: int, make: Callable[[dict[str, Any]], Record]
) -> Record:
    """Read a JSON file of a ``kind`` and ``schema``, and call ``make`` with all other fields."""
    fields = read_json(path)
    must = f"{path}: must hold a record of kind {kind!r}, schema {schema}"
    head = (fields.pop("kind", None), fields.pop("schema", None))
    if head != (kind, schema):
        raise CheckpointError(f"{must}, got kind {short(head[0])}, schema {short(head[1])}.")
    try:
        return make(fields)
    except (TypeError, ValueError, KeyError, AttributeError) as error:
        raise CheckpointError(f"{must}, got {error}.") from error


def write_jsonl(path: Path, rows: Iterable[Mapping[str, Any]]) -> None:
    """Write one JSON object per line, whole or not at all."""
    write_text(path, "".join(_line(row, number) for number, row in enumerate(rows)))


def append_jsonl(path: Path, row: Mapping[str, Any]) -> None:
    """Append one row to a file, so that an interrupted run keeps its measurements."""
    line = _line(row, _next_number(path)).encode()
    before = path.stat().st_size if path.exists() else 0
    try:
        with path.open("ab", buffering=0) as file:
            written = file.write(line)
            if written < len(line):
                file.write(line[written:])  # raises the error that stopped the first write
    except OSError:
        if path.exists():
            os.truncate(path, before)  # half a row would spoil the file
        raise


def read_jsonl(path: Path, *, recorded: Mapping[str, Any] | None = None) -> list[dict[str, Any]]:
    """Read a JSON-lines file that :func:`write_jsonl` or :func:`append_jsonl` wrote.

    ``recorded`` is the result of :func:`log_facts` when the file was finished. Without it, missing
    rows at the end are not detected. Any other fault is a CheckpointError.
    """
    rows, faults = _read_rows(path)
    if faults:
        raise CheckpointError(faults[0])
    if recorded is not None and recorded != (facts := _facts(path)):
        raise CheckpointError(
            f"{path}: must be the file of {short(recorded['rows'])} rows that was measured, got "
            f"{'other content' if facts['rows'] == recorded['rows'] else facts['rows']}."
        )
    return rows


def recover_jsonl(path: Path) -> tuple[list[dict[str, Any]], list[str]]:
    """Remove damaged rows of an unfinished file. Returns the others, and a sentence for each
    damaged or missing row, except half a row at the end, which a killed writer leaves."""
    if not path.exists():
        return [], []
    cut_half_row(path)
    rows, faults = _read_rows(path)
    if faults:
        write_jsonl(path, rows)
    return rows, faults


def cut_half_row(path: Path) -> None:
    """Remove the half row that a killed writer leaves at the end of a file, if the file exists."""
    content = path.read_bytes() if path.exists() else b""
    whole = content.rfind(b"\n") + 1
    if whole < len(content):
        os.truncate(path, whole)


def log_facts(path: Path) -> dict[str, Any]:
    """``rows`` and ``sha256`` of a finished JSON-lines file, for :func:`read_jsonl` to compare."""
    sync(path)
    return _facts(path)


def _facts(path: Path) -> dict[str, Any]:
    with path.open("rb") as file:
        rows = sum(1 for _ in file)
    return {"rows": rows, "sha256": file_hash(path)}


def write_plain_jsonl(path: Path, rows: Iterable[Mapping[str, Any]]) -> None:
    """Write rows for other programs, without checksums and numbers."""
    make_folder(path.parent)
    lines = [json.dumps(row, ensure_ascii=False, allow_nan=False) for row in rows]
    write_text(path, "".join(line + "\n" for line in lines))


def read_plain_jsonl(path: Path) -> list[dict[str, Any]]:
    """Read a JSON-lines file of other programs."""
    return [_object(line, where) for where, line in _lines(path)]


def is_empty_folder(path: Path, *, besides: str | None = None) -> bool:
    """Whether a folder exists and holds nothing but ``besides`` and hidden entries."""
    return path.is_dir() and all(
        entry.name == besides or entry.name.startswith(".") for entry in path.iterdir()
    )


def _line(row: Mapping[str, Any], number: int) -> str:
    assert _NUMBER not in row, f"{_NUMBER} is not a field of a row"
    return json.dumps(sealed({_NUMBER: number, **row}), ensure_ascii=False) + "\n"


def _next_number(path: Path) -> int:
    """Number of rows in a file, read from its last row."""
    if not path.exists():
        return 0
    last, size = b"", path.stat().st_size
    with path.open("rb") as file:
        while size and b"\n" not in last[:-1]:
            start = max(0, size - 65536)
            file.seek(start)
            last, size = file.read(size - start) + last, start
    if not last:
        return 0
    row = _object(last[:-1].rpartition(b"\n")[2], f"{path}: last line")
    return int(opened(row, f"{path}: last line")[_NUMBER]) + 1


def _read_rows(path: Path) -> tuple[list[dict[str, Any]], list[str]]:
    """All undamaged rows, and a sentence for each damaged row and each gap."""
    rows, faults, expected = [], [], 0
    for where, line in _lines(path):
        try:
            row = opened(_object(line, where), where)
        except CheckpointError as error:
            faults.append(str(error))
        else:
            if (number := row.pop(_NUMBER)) != expected:
                faults.append(f"{where}: must be row {expected}, got row {number}.")
            expected = number
            rows.append(row)
        expected += 1
    return rows, faults


def _lines(path: Path) -> Iterable[tuple[str, bytes]]:
    content = _content(path)
    # Text within a row may hold other line separators, such as U+2028.
    lines = content.removesuffix(b"\n").split(b"\n") if content else []
    return ((f"{path}:{number}", line) for number, line in enumerate(lines, start=1))


def _object(line: bytes, where: str) -> dict[str, Any]:
    try:
        row = _parsed(line)
    except ValueError:
        row = None
    if not isinstance(row, dict):
        got = line[:40].decode(errors="replace")
        raise CheckpointError(f"{where}: every line must be a JSON object, got {got!r}.")
    return row


def _content(path: Path) -> bytes:
    if not path.is_file():  # also a pipe, which would never end
        got = "another kind of file" if path.exists() else "none"
        raise CheckpointError(f"{path}: file must exist, got {got}.")
    with path.open("rb") as file:
        size = os.fstat(file.fileno()).st_size
        if size > _MAX_BYTES:
            raise CheckpointError(f"{path}: must have at most {_MAX_BYTES} bytes, got {size}.")
        return file.read(size)  # not more: some files in /proc have no end


def _parsed(content: bytes) -> Any:
    """Parse JSON; ValueError for content that JSON does not allow or Python cannot hold."""

    def finite(number: str) -> float:
        value = float(number)
        if not math.isfinite(value):
            raise ValueError(f"{number[:20]} is not a finite number")
        return value

    try:
        return json.loads(content.decode(), parse_float=finite, parse_constant=finite)
    except RecursionError as error:
        raise ValueError("nested too deeply") from error


def sealed(value: Mapping[str, Any]) -> dict[str, Any]:
    """A JSON object with its checksum as the last field; spaces and key order do not matter."""
    assert _CHECKSUM not in value, f"{_CHECKSUM} is not a field of a record"
    plain = json.loads(json.dumps(value, allow_nan=False))  # in JSON all keys become strings
    return {**value, _CHECKSUM: _checksum(plain)}


def opened(value: dict[str, Any], where: str) -> dict[str, Any]:
    """The object without its checksum, which must fit the other fields."""
    recorded = value.pop(_CHECKSUM, None)
    if recorded == _checksum(value):
        return value
    fault = "must be as it was written, got other content than its checksum says"
    if recorded is None:
        fault = "must carry a checksum, got none (it is damaged, or older than checksums)"
    raise CheckpointError(f"{where}: {fault}.")


def file_hash(path: Path) -> str:
    """SHA-256 of a file's bytes, in hexadecimal."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _checksum(plain: Mapping[str, Any]) -> str:
    text = json.dumps(plain, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def clean_leftovers(folder: Path, name: str | None = None) -> None:
    """Remove temporary files and folders of dead processes for ``name``; default: all files."""
    temporary_name = re.compile(
        rf"\.{'.+' if name is None else re.escape(name)}\.\d+\.tmp", re.DOTALL
    )
    for entry in folder.iterdir():
        is_folder = name is not None and entry.is_dir()
        if not temporary_name.fullmatch(entry.name) or not (is_folder or entry.is_file()):
            continue
        locked = entry / LOCK if is_folder else entry
        # OSError: a process has the lock and writes, or the file system has no locks.
        with contextlib.suppress(OSError), locked.open("ab") as file:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if is_folder:
                shutil.rmtree(entry)
            elif _still_has_name(file, entry):
                entry.unlink()


def open_locked(path: Path) -> IO[str]:
    """A new text file, locked where the file system has locks."""
    while True:
        file = path.open("w", encoding="utf-8")
        with contextlib.suppress(OSError):
            fcntl.flock(file, fcntl.LOCK_EX)
        if _still_has_name(file, path):
            return file
        file.close()  # another process removed it as a leftover before it was locked


def _still_has_name(file: IO[str] | IO[bytes], path: Path) -> bool:
    try:
        return os.path.samestat(os.fstat(file.fileno()), path.stat())
    except FileNotFoundError:
        return False
