"""Hash the data of all items, so that an evaluation is never continued with other data."""

import hashlib
from collections.abc import Iterable, Mapping
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import Any

import numpy as np

from diffattn.errors import CheckpointError
from diffattn.files.io import read_json, write_json
from diffattn.lab.evaluation.protocol import Item

DATA = "data.json"


def data_digest(items: Iterable[Item], material: Any) -> str:
    """First 16 hex digits of the SHA-256 of all items, also of items that are not selected.

    Parameters only name files and packages; the digest covers their content. For ``material`` see
    :meth:`diffattn.lab.evaluation.protocol.Protocol.material`.
    """
    digest = hashlib.sha256()
    for value in (material, *items):
        for piece in _pieces(value):
            digest.update(piece)
    return digest.hexdigest()[:16]


def claim_data(folder: Path, digest: str, *, has_rows: bool) -> None:
    """Write the digest, or check that existing rows were made from the same data."""
    recorded = recorded_data(folder) if has_rows else None
    if recorded is None:
        write_json(folder / DATA, {"schema": 1, "sha256": digest})
    elif recorded != digest:
        raise CheckpointError(
            f"{folder}: must be continued with the data it was begun with ({recorded}), got other "
            f"({digest}): the files, corpora or packages that its items come from have changed. "
            "Choose another --out."
        )


def recorded_data(folder: Path) -> str | None:
    """The recorded digest of the data in ``folder``; ``None`` without a record."""
    path = folder / DATA
    return str(read_json(path).get("sha256")) if path.exists() else None


def _pieces(value: Any) -> Iterable[bytes]:
    """The value as bytes, the same in every process. Of unknown objects only the type counts."""
    if isinstance(value, str):
        content = value.encode("utf-8", "surrogatepass")
        yield b"s%d:" % len(content)
        yield content
    elif value is None or isinstance(value, bool | int | float | bytes | Path):
        yield repr(value).encode() + b";"
    elif isinstance(value, np.ndarray | np.generic):
        yield f"{value.dtype}{value.shape}".encode()
        yield value.tobytes()
    elif isinstance(value, list | tuple):
        yield b"[%d:" % len(value)
        if set(map(type, value)) <= {int, str}:  # tokens and words, by the million
            yield repr(list(value)).encode()
        else:
            for part in value:
                yield from _pieces(part)
    elif isinstance(value, set | frozenset):
        yield from _pieces(sorted(b"".join(_pieces(part)) for part in value))
    elif isinstance(value, Mapping):
        yield from _pieces([list(pair) for pair in value.items()])
    else:
        yield type(value).__name__.encode() + b";"
        if is_dataclass(value):
            for part in fields(value):
                yield from _pieces(getattr(value, part.name))
