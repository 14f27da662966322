"""Find a model by a path or a hub name, and read the headers of its weight files."""

import json
import math
import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open

from diffattn.errors import CheckpointError, did_you_mean, first_line, short

_MOST_INDEX = 100_000_000
"""Largest size of an index file, in bytes."""
INDEX = "model.safetensors.index.json"
Find = Callable[[str], Path | None]
"""Function from the name of a model's file to its path, or ``None`` if there is no such file."""
_PATTERNS = ("*/", "*/model/", "runs/*/model/", "*/runs/*/model/")
_MOST_NAMES = 6


def model_folder(path: Path) -> Path:
    """The folder with ``config.json``: ``path/model`` in a run directory, else ``path``."""
    inside = path / "model"
    return inside if (inside / "config.json").exists() else path


def is_hub_name(name: str) -> bool:
    """Whether a name can be of a hub model: its form fits, and no file or parent folder has it."""
    path = Path(name)
    is_here = path.exists() or (len(path.parts) == 2 and path.parent.exists())
    return bool(re.fullmatch(r"(\w[\w.-]*/)?\w[\w.-]*", name, re.ASCII)) and not is_here


def checkpoint_folder(name_or_path: str) -> Path:
    """The folder that holds ``config.json``, or the hub name as a path. Needs no torch."""
    folder = model_folder(Path(name_or_path))
    if (folder / "config.json").exists():
        return folder
    if folder.exists():
        models = models_inside(folder)
        got = f"several: {listed(models)}. Name one of them" if models else "none"
        if (folder / "run.json").exists():
            got = "a run that has not ended: 'diffattn train' continues it"
        raise CheckpointError(
            f"{name_or_path}: must hold a model (config.json, or model/config.json), got {got}."
        )
    if is_hub_name(name_or_path):
        return folder
    names = {path.relative_to(folder.parent).parts[0] for path in models_inside(folder.parent)}
    raise CheckpointError(
        f"{name_or_path}: must be a run directory, a model folder or a hub name, got nothing."
        f"{did_you_mean(folder.name, sorted(names))}"
    )


def models_inside(folder: Path) -> list[Path]:
    """Run directories and model folders inside a folder, for example one of a study."""
    places = [path.parent for inside in _PATTERNS for path in folder.glob(f"{inside}config.json")]
    return sorted(path.parent if path.name == "model" else path for path in places)


def listed(names: Sequence[object]) -> str:
    """The first six names with commas, for a message."""
    first = ", ".join(map(str, names[:_MOST_NAMES]))
    return f"{first}, ..." if len(names) > _MOST_NAMES else first


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
