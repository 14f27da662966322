"""JSON and JSON-lines files that are either whole or absent."""

import json
import os
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, TypeVar

from diffattn.errors import CheckpointError

Record = TypeVar("Record")


def write_json(path: Path, value: Any) -> None:
    """Write ``value`` so that a reader never sees half a file, also if the disk fills up.

    Args:
        path: Target file; its parent folder is made if missing.
        value: Anything ``json`` can write. NaN and infinity are refused: they are not JSON.

    Raises:
        ValueError: ``value`` holds NaN or infinity.
        OSError: The disk is full or not writable; an existing file is left as it was.
    """
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    text = json.dumps(value, indent=2, ensure_ascii=False, allow_nan=False, sort_keys=False)
    write_text(path, text + "\n")


def write_text(path: Path, text: str) -> None:
    """Replace ``path`` by ``text`` in one step; on failure the old file stays."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        with temporary.open("w", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)


def read_json(path: Path) -> Any:
    """Read one JSON file.

    Raises:
        CheckpointError: The file is missing or is not JSON.
    """
    path = Path(path)
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError as error:
        raise CheckpointError(f"{path}: file must exist, got none.") from error
    except (json.JSONDecodeError, UnicodeDecodeError) as error:
        raise CheckpointError(f"{path}: must be JSON, got a damaged file ({error}).") from error


def read_record(
    path: Path, kind: str, schema: int, make: Callable[[dict[str, Any]], Record]
) -> Record:
    """Read a JSON file that names its kind and schema version.

    Args:
        path: The file.
        kind: What it must hold.
        schema: The version that is read.
        make: Makes the record of the other fields.

    Raises:
        CheckpointError: The file is missing, damaged, of another kind or schema version.
    """
    value = read_json(path)
    must = f"{path}: must hold a record of kind {kind!r}, schema {schema}"
    fields = value if isinstance(value, dict) else {}
    head = (fields.pop("kind", None), fields.pop("schema", None))
    if head != (kind, schema):
        raise CheckpointError(f"{must}, got kind {head[0]!r}, schema {head[1]}.")
    try:
        return make(fields)
    except (TypeError, KeyError, AttributeError) as error:
        raise CheckpointError(f"{must}, got {error}.") from error


def write_jsonl(path: Path, rows: Iterable[Mapping[str, Any]]) -> None:
    """Write one JSON object per line, whole or not at all."""
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    lines = [json.dumps(row, ensure_ascii=False, allow_nan=False) for row in rows]
    write_text(path, "".join(line + "\n" for line in lines))


def append_jsonl(path: Path, row: Mapping[str, Any]) -> None:
    """Append one row, so that an interrupted run keeps what it had measured.

    Raises:
        ValueError: ``row`` holds NaN or infinity.
        OSError: The disk is full or not writable; the rows before stay.
    """
    path = Path(path)
    line = (json.dumps(row, ensure_ascii=False, allow_nan=False) + "\n").encode()
    before = path.stat().st_size if path.exists() else 0
    try:
        with path.open("ab", buffering=0) as file:
            written = file.write(line)
            if written < len(line):
                file.write(line[written:])  # raises what stopped the first write
    except OSError:
        if path.exists():
            os.truncate(path, before)  # half a row would spoil the file
        raise


def cut_jsonl(path: Path) -> None:
    """Cut off the half row that a killed writer may have left at the end of a file."""
    path = Path(path)
    text = path.read_bytes()
    whole = text.rfind(b"\n") + 1
    if whole < len(text):
        os.truncate(path, whole)


def read_jsonl(path: Path) -> list[dict[str, Any]]:
    """Read a JSON-lines file.

    Raises:
        CheckpointError: The file is missing or a line is not a JSON object.
    """
    path = Path(path)
    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError as error:
        raise CheckpointError(f"{path}: file must exist, got none.") from error
    except UnicodeDecodeError as error:
        raise CheckpointError(f"{path}: must be UTF-8, got a damaged file ({error}).") from error
    rows = []
    # Not splitlines(): text within a row may hold other line separators, such as U+2028.
    for number, line in enumerate(text.removesuffix("\n").split("\n") if text else (), start=1):
        try:
            row = json.loads(line)
        except json.JSONDecodeError:
            row = None
        if not isinstance(row, dict):
            raise CheckpointError(
                f"{path}:{number}: every line must be a JSON object, got {line[:40]!r}."
            )
        rows.append(row)
    return rows


def is_empty_folder(path: Path, *, besides: str | None = None) -> bool:
    """Whether nothing but ``besides`` and hidden files, such as our temporary ones, lies there."""
    path = Path(path)
    return path.is_dir() and all(
        entry.name == besides or entry.name.startswith(".") for entry in path.iterdir()
    )
