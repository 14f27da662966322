"""Select the items to ask, and hash their data: no evaluation continues with other data."""

import hashlib
import itertools
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import Any

import numpy as np

from diffattn.errors import CheckpointError
from diffattn.files.io import read_json, write_json
from diffattn.lab.evaluation.protocol import Item

DATA = "data.json"


def data_digest(items: Iterable[Item], material: Any) -> str:
    """First 16 hex digits of the SHA-256 of all items, also of those that are not selected, and of
    the material: parameters only name files and packages, the digest covers their content."""
    digest = hashlib.sha256()
    for value in (material, *items):
        for piece in _pieces(value):
            digest.update(piece)
    return digest.hexdigest()[:16]


def claim_data(folder: Path, digest: str, *, has_rows: bool) -> None:
    """Write the digest, or check that existing rows were made from the same data."""
    path = folder / DATA
    recorded = read_json(path).get("sha256") if has_rows and path.exists() else None
    if recorded is None:
        write_json(path, {"schema": 1, "sha256": digest})
    elif recorded != digest:
        raise CheckpointError(
            f"{folder}: must be continued with the data it was begun with ({recorded}), got other "
            f"({digest}): the files, corpora or packages that its items come from have changed. "
            "Choose another --out."
        )


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


def limited(batches: Sequence[Sequence[Item]], limit: int) -> list[list[Item]]:
    """At most ``limit`` items, spread over all batches, the same for every model.

    Clusters are kept whole, as their items are compared. Their list is cut into equal blocks, and
    the cluster with the smallest hash of each block is taken if it fits. Only the first may be cut.
    """

    def digest(name: str) -> bytes:
        return hashlib.sha256(name.encode("utf-8", "surrogatepass")).digest()

    clusters: dict[str, list[str]] = {}
    for item in itertools.chain.from_iterable(batches):
        clusters.setdefault(item.cluster or item.id, []).append(item.id)
    names, num_items = list(clusters), sum(map(len, batches))
    wanted = max(1, min(len(names), limit * len(names) // max(1, num_items)))
    edges = [len(names) * i // wanted for i in range(wanted + 1)]
    chosen: list[str] = []
    for first, end in itertools.pairwise(edges):
        cluster = clusters[min(names[first:end], key=digest)]
        if not chosen or len(chosen) + len(cluster) <= limit:
            chosen += cluster
    kept = set(chosen[:limit])
    parts = [[item for item in batch if item.id in kept] for batch in batches]
    return [part for part in parts if part]
