"""Totals of weight files, from their headers alone: tensors, numbers and bytes."""

import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from safetensors import SafetensorError, safe_open

from diffattn.errors import CheckpointError, first_line, short

_MOST_INDEX = 100_000_000
"""Bytes."""
_INDEX = "model.safetensors.index.json"
Find = Callable[[str], Path | None]
"""A file of a folder by name, or ``None`` if there is none."""


def files_in(folder: Path) -> Find:
    """Find files of a folder on the disk."""

    def find(name: str) -> Path | None:
        path = folder / name
        return path if path.exists() else None

    return find


class Weights(NamedTuple):
    """Totals over all files of one model."""

    tensors: int
    numbers: int
    size: int
    """In bytes."""


def weights_of(name: str, find: Find) -> Weights | None:
    """Totals of a model's safetensors files, or ``None`` if there are none.

    Raises:
        CheckpointError: A header or the index is damaged, or contradicts its file.
    """
    files = weight_files(name, find)
    if files is None:
        return None
    parts = [file_totals(f"{name}/{file}", path) for file, path in files.items()]
    return Weights(*map(sum, zip(*parts, strict=True)))


def weight_files(name: str, find: Find) -> dict[str, Path] | None:
    """A model's safetensors files by name: the only file, or those of its index that are there.

    ``name`` of the folder begins the message of a CheckpointError about a damaged index.
    """
    whole = find("model.safetensors")
    if whole is not None:
        return {"model.safetensors": whole}
    index = find(_INDEX)
    if index is None:
        return None
    shards = {file: find(file) for file in _shards(f"{name}/{_INDEX}", index)}
    # transformers names a file that is missing.
    return {file: path for file, path in shards.items() if path is not None}


def _shards(where: str, path: Path) -> list[str]:
    """Files that an index names, all beside it."""
    if not path.is_file() or path.stat().st_size > _MOST_INDEX:
        raise CheckpointError(f"{where}: must be a file of {_MOST_INDEX:,} bytes at most.")
    try:
        table = json.loads(path.read_bytes())["weight_map"]
        files = sorted(set(table.values()))
    except (ValueError, RecursionError, KeyError, TypeError, AttributeError) as error:
        raise CheckpointError(f"{where}: must map weights to files, got: {error}.") from error
    for file in files:
        if not isinstance(file, str) or Path(file).name != file or file[-12:] != ".safetensors":
            raise CheckpointError(
                f"{where}: weight_map must name .safetensors files beside it, got {short(file)}."
            )
    return files


def file_totals(where: str, path: Path) -> Weights:
    """Totals of one safetensors file; CheckpointError if its header does not fit."""
    if not path.is_file():
        raise CheckpointError(f"{where}: must be a file, got something else.")
    try:
        with safe_open(path, "np") as file:
            shapes = [file.get_slice(name).get_shape() for name in file.keys()]  # noqa: SIM118
    except (SafetensorError, OSError) as error:
        raise CheckpointError(
            f"{where}: must be whole safetensors, got: {first_line(error)}."
        ) from error
    return Weights(len(shapes), sum(map(math.prod, shapes)), path.stat().st_size)
