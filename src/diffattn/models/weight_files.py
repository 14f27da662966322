"""Tensors, numbers and bytes of weight files, read from the headers of the files only."""

import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from safetensors import SafetensorError, safe_open

from diffattn.errors import CheckpointError, first_line, short

_MOST_INDEX = 100_000_000
"""Largest size of an index file, in bytes."""
_INDEX = "model.safetensors.index.json"
Find = Callable[[str], Path | None]
"""Function from the name of a model's file to its path, or ``None`` if there is no such file."""


def files_in(folder: Path) -> Find:
    """A :data:`Find` for a folder on the disk."""

    def find(name: str) -> Path | None:
        path = folder / name
        return path if path.exists() else None

    return find


class Weights(NamedTuple):
    """Totals over all files of one model."""

    tensors: int
    numbers: int
    size: int
    """Size of the files, in bytes."""


def weights_of(name: str, find: Find) -> Weights | None:
    """Totals of a model's safetensors files, or ``None`` without such files.

    Raises:
        CheckpointError: A header or the index is damaged, or contradicts its file.
    """
    files = weight_files(name, find)
    if files is None:
        return None
    parts = [file_totals(f"{name}/{file}", path) for file, path in files.items()]
    return Weights(*map(sum, zip(*parts, strict=True)))


def weight_files(name: str, find: Find) -> dict[str, Path] | None:
    """Name -> path of a model's safetensors files: the only file, or existing files of its index.

    ``None`` without such files. ``name`` begins the message about a damaged index.
    """
    whole = find("model.safetensors")
    if whole is not None:
        return {"model.safetensors": whole}
    index = find(_INDEX)
    if index is None:
        return None
    shards = {file: find(file) for file in _shards(f"{name}/{_INDEX}", index)}
    # Missing files are left out here: transformers' error names them.
    return {file: path for file, path in shards.items() if path is not None}


def _shards(where: str, path: Path) -> list[str]:
    """Names of the files in an index; all must be in the folder of the index."""
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
    """Totals of one safetensors file; CheckpointError if it is damaged."""
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
