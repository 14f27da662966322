"""The JSON file beside a token file describes the tokens and their source."""

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from diffattn.errors import CheckpointError
from diffattn.files.io import read_json

# Sidecars come last: with them a packing is whole.
FILES = (
    "train.bin",
    "train.idx",
    "train.names",
    "validation.bin",
    "validation.idx",
    "validation.names",
    "train.json",
    "validation.json",
)
SCHEMA = 3
DTYPES: dict[str, np.dtype[Any]] = {"uint16": np.dtype("<u2"), "uint32": np.dtype("<u4")}
_FIELDS = {
    "schema": int,
    "validation_fraction": float,
    "corpus_hash": str,
    "tokenizer_hash": str,
    "split": str,
    "dtype": str,
    "vocab_size": int,
    "num_tokens": int,
    "num_bytes": int,
    "num_documents": int,
    "token_hash": str,
    "index_hash": str,
    "names_hash": str,
    "names_bytes": int,
}


@contextlib.contextmanager
def advised(folder: Path) -> Iterator[None]:
    """Add advice to the error of a packing that is missing or damaged."""
    try:
        yield
    except CheckpointError as error:
        named = any((folder / name).exists() for name in (*FILES, "data.json"))
        advice = (
            f"Delete the packed files in {folder} (data.json, tokenizer/, train.*, validation.*) "
            "and pack again."
            if named
            else "Pack the corpus first."
        )
        raise CheckpointError(f"{error} {advice}") from error


def read_sidecar(path: Path, split: str) -> dict[str, Any]:
    """Read and check the sidecar of a split.

    Raises:
        CheckpointError: The file is missing, damaged, or not such a sidecar.
    """
    sidecar = read_json(path)
    wrong = [key for key, kind in _FIELDS.items() if not isinstance(sidecar.get(key), kind)]
    if not wrong:
        expected = {"schema": SCHEMA, "split": split}
        wrong = [key for key, value in expected.items() if sidecar[key] != value]
        wrong += ["dtype"] if sidecar["dtype"] not in DTYPES else []
        wrong += ["num_tokens"] if sidecar["num_tokens"] < 1 else []
    if wrong:
        raise CheckpointError(
            f"{path}: must be the {split} sidecar of a packing (schema {SCHEMA}), "
            f"got other or no values for {', '.join(wrong)}."
        )
    return sidecar
