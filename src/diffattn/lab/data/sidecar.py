"""The JSON file beside a token file describes the tokens and their source."""

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any, Literal, TypedDict

import numpy as np

from diffattn.errors import CheckpointError
from diffattn.files.io import read_json
from diffattn.lab.data.split_writer import SUFFIXES
from diffattn.lab.data.splits import SPLITS
from diffattn.lab.records.fields import AtLeast, checked

# Sidecars come last: they mark a packing as complete.
FILES = (
    *(f"{split}.{suffix}" for split in SPLITS for suffix in SUFFIXES),
    *(f"{split}.json" for split in SPLITS),
)
SCHEMA = 3
DTYPES: dict[str, np.dtype[Any]] = {"uint16": np.dtype("<u2"), "uint32": np.dtype("<u4")}


class Sidecar(TypedDict):
    """Fields of ``SPLIT.json``; :mod:`diffattn.lab.data.packing` describes them."""

    schema: Literal[3]
    validation_fraction: float
    corpus_hash: str
    tokenizer_hash: str
    split: Literal["train", "validation"]
    dtype: Literal["uint16", "uint32"]
    vocab_size: int
    num_tokens: Annotated[int, AtLeast(1)]
    num_bytes: int
    num_documents: int
    token_hash: str
    index_hash: str
    names_hash: str
    names_bytes: int


@contextlib.contextmanager
def advised(folder: Path) -> Iterator[None]:
    """Add advice to a ``CheckpointError`` about a packing that is missing or damaged."""
    try:
        yield
    except CheckpointError as error:
        advice = "Pack the corpus first."
        if any((folder / name).exists() for name in (*FILES, "data.json")):
            advice = (
                f"Delete the packed files in {folder} (data.json, tokenizer/, train.*, "
                "validation.*) and pack again."
            )
        raise CheckpointError(f"{error} {advice}") from error


def read_sidecar(path: Path, split: str) -> dict[str, Any]:
    """Read and check the sidecar of a split.

    Raises:
        CheckpointError: The file is missing, damaged, or not the sidecar of this split.
    """
    sidecar = read_json(path)
    checked(Sidecar, sidecar, str(path))
    if sidecar["split"] != split:
        raise CheckpointError(f"{path}: split must be {split!r}, got {sidecar['split']!r}.")
    return sidecar
