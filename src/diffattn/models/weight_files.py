"""What files of weights hold, read off their headers: names, shapes and sizes, no numbers."""

import json
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from diffattn.errors import CheckpointError, first_line, short

_MOST_HEADER = 100_000_000
"""Bytes: the limit of the safetensors library itself."""
_BITS = {
    "BOOL": 8, "U8": 8, "I8": 8, "F8_E4M3": 8, "F8_E5M2": 8, "F8_E8M0": 8, "I16": 16, "U16": 16,
    "F16": 16, "BF16": 16, "I32": 32, "U32": 32, "F32": 32, "I64": 64, "U64": 64, "F64": 64,
    "C64": 64,
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Weights:
    """Totals over all files of one model."""

    tensors: int
    numbers: int
    size: int
    """In bytes."""


def weights_of(name: str, find: Callable[[str], Path | None]) -> Weights | None:
    """Totals of a model's safetensors files.

    Args:
        name: Of the folder, first in messages.
        find: A file of the folder by name, or ``None`` if there is none.

    Returns:
        The totals, or ``None`` if there are no such files.

    Raises:
        CheckpointError: A header or the index is damaged, or contradicts its file.
    """
    files = weight_files(name, find)
    if files is None:
        return None
    parts = [file_totals(f"{name}/{file}", path) for file, path in files.items()]
    return Weights(
        sum(part.tensors for part in parts),
        sum(part.numbers for part in parts),
        sum(part.size for part in parts),
    )


def weight_files(name: str, find: Callable[[str], Path | None]) -> dict[str, Path] | None:
    """A model's safetensors files by name: the only one, or those of its index that are there.

    Args:
        name: Of the folder, first in messages.
        find: A file of the folder by name, or ``None`` if there is none.

    Returns:
        The files, or ``None`` if there is neither.

    Raises:
        CheckpointError: The index is damaged.
    """
    whole = find("model.safetensors")
    if whole is not None:
        return {"model.safetensors": whole}
    index = find("model.safetensors.index.json")
    if index is None:
        return None
    return {
        file: path
        for file in _shards(f"{name}/model.safetensors.index.json", index)
        if (path := find(file)) is not None  # transformers names one that is missing
    }


def _shards(where: str, path: Path) -> list[str]:
    """Files that an index names, all beside it."""
    if not path.is_file() or path.stat().st_size > _MOST_HEADER:
        raise CheckpointError(f"{where}: must be a file of {_MOST_HEADER:,} bytes at most.")
    table = _object(where, path.read_bytes()).get("weight_map")
    if not isinstance(table, dict) or not all(isinstance(x, str) for x in table.values()):
        raise CheckpointError(f"{where}: weight_map must name files, got {short(table)}.")
    for file in table.values():
        if Path(file).name != file or not file.endswith(".safetensors"):
            raise CheckpointError(
                f"{where}: weight_map must name .safetensors files beside it, got {file!r}."
            )
    return sorted(set(table.values()))


def file_totals(where: str, path: Path) -> Weights:
    """Totals of one file, whose header must describe it byte for byte.

    Args:
        where: First in messages.
        path: A safetensors file.

    Raises:
        CheckpointError: It is damaged.
    """
    if not path.is_file():
        raise CheckpointError(f"{where}: must be a file, got something else.")
    size = path.stat().st_size
    with path.open("rb") as file:
        length = int.from_bytes(file.read(8), "little")
        if size < 8 or length > min(_MOST_HEADER, size - 8):
            raise CheckpointError(
                f"{where}: must be a safetensors file, which begins with the length of its header, "
                f"got {length:,} for it in a file of {size:,} bytes."
            )
        header = _object(where, file.read(length))
    tensors = {name: entry for name, entry in header.items() if name != "__metadata__"}
    numbers = 0
    for name, entry in tensors.items():
        count = _numbers(where, name, entry, size - 8 - length)
        numbers += count
    return Weights(len(tensors), numbers, size)


def _numbers(where: str, name: str, entry: Any, room: int) -> int:
    """Numbers in one tensor, if its entry is one that fits the file."""
    entry = entry if isinstance(entry, dict) else {}
    shape, offsets, bits = (
        entry.get("shape"),
        entry.get("data_offsets"),
        _BITS.get(str(entry.get("dtype"))),
    )
    if not _naturals(shape) or not _naturals(offsets) or len(offsets) != 2 or len(shape) > 64:
        raise CheckpointError(
            f"{where}: {short(name)} must have a shape and offsets, got {short(entry)}."
        )
    count = 1
    for length in shape:
        count = min(count * length, 2**63)
    begin, end = offsets
    # A dtype of less than a byte, or one from the future, is left to the library.
    fits = bits is None or (end - begin) * 8 == count * bits
    if not begin <= end <= room or not fits:
        raise CheckpointError(
            f"{where}: {short(name)} must lie within the file and have the size of its shape, "
            f"got {short(entry)}."
        )
    return count if bits is not None else (end - begin) * 8


def _naturals(value: Any) -> bool:
    return isinstance(value, list) and all(type(x) is int and 0 <= x < 2**63 for x in value)


def _object(where: str, text: bytes) -> dict[str, Any]:
    try:
        content = json.loads(text, object_pairs_hook=_once_each)
    except (ValueError, RecursionError) as error:
        got = first_line(error)
        raise CheckpointError(f"{where}: must have a header of JSON, got: {got}.") from error
    if not isinstance(content, dict):
        raise CheckpointError(f"{where}: must have a header of JSON, got {short(content)}.")
    return content


def _once_each(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """The format forbids a name twice: readers differ on which of the two counts."""
    content = dict(pairs)
    if len(content) < len(pairs):
        ((twice, _),) = Counter(name for name, _ in pairs).most_common(1)
        raise ValueError(f"{short(twice)} twice")
    return content
