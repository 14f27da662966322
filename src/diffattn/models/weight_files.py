"""Tensors, numbers and bytes of weight files, read from the headers of the files only."""

import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open

from diffattn.errors import CheckpointError, first_line, short

_MOST_INDEX = 100_000_000
"""Largest size of an index file, in bytes."""
INDEX = "model.safetensors.index.json"
Find = Callable[[str], Path | None]
"""Function from the name of a model's file to its path, or ``None`` if there is no such file."""


def files_in(folder: Path) -> Find:
    """A :data:`Find` for a folder on the disk."""
    return lambda name: folder / name if (folder / name).exists() else None


def weights_of(name: str, find: Find) -> tuple[int, int, int] | None:
    """Tensors, numbers and bytes of a model's safetensors files; ``None`` without such files."""
    tensors = numbers = size = 0
    files = weight_files(name, find)
    for file, path in files.items():
        with open_weights(f"{name}/{file}", path, "np") as header:
            shapes = [header.get_slice(x).get_shape() for x in header.keys()]  # noqa: SIM118
        tensors, numbers = tensors + len(shapes), numbers + sum(map(math.prod, shapes))
        size += path.stat().st_size
    return (tensors, numbers, size) if files else None


def open_weights(where: str, path: Path, framework: str) -> Any:
    """A safetensors file, to be closed by ``with``; CheckpointError if it is damaged."""
    if not path.is_file():
        raise CheckpointError(f"{where}: must be a file, got something else.")
    try:
        return safe_open(path, framework)
    # RuntimeError: PyTorch maps the whole file into memory, which may fail.
    except (SafetensorError, OSError, RuntimeError) as error:
        must = f"{where}: must be whole safetensors"
        raise CheckpointError(f"{must}, got: {first_line(error)}.") from error


def weight_files(name: str, find: Find) -> dict[str, Path]:
    """Name -> path of a model's safetensors files: the only file, or all files of its index."""
    whole, index = find("model.safetensors"), None
    if whole is not None or (index := find(INDEX)) is None:
        return {} if whole is None else {"model.safetensors": whole}
    where = f"{name}/{INDEX}"
    if not index.is_file() or index.stat().st_size > _MOST_INDEX:
        raise CheckpointError(f"{where}: must be a file of {_MOST_INDEX:,} bytes at most.")
    try:
        files = sorted(set(json.loads(index.read_bytes())["weight_map"].values()))
    except (ValueError, RecursionError, KeyError, TypeError, AttributeError) as error:
        raise CheckpointError(f"{where}: must map weights to files, got: {error}.") from error
    paths = {}
    for file in files:
        if not isinstance(file, str) or Path(file).name != file or file[-12:] != ".safetensors":
            raise CheckpointError(
                f"{where}: weight_map must name .safetensors files beside it, got {short(file)}."
            )
        path = find(file)
        if path is None:
            raise CheckpointError(f"{name}: must hold {file}, which its index names, got none.")
        paths[file] = path
    return paths
