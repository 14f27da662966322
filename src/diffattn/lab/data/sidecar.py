"""The JSON file beside a token file: what the tokens are and what they came from."""

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from diffattn.errors import CheckpointError
from diffattn.files.io import read_json

# Sidecars come last: with them a packing is whole.
FILES = (
    "train.bin", "train.idx", "train.names", "validation.bin", "validation.idx", "validation.names",
    "train.json", "validation.json",
)  # fmt: skip
SCHEMA = 3
"""Borders and names of the documents have files of their own since version 3."""
OLD_SCHEMA = 2
"""The sidecar holds them as lists; it is still read, so that runs on such data go on."""
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
}
_MORE_FIELDS: dict[int, dict[str, type]] = {
    OLD_SCHEMA: {"document_offsets": list, "documents": list},
    SCHEMA: {"index_hash": str, "names_hash": str},
}


@contextlib.contextmanager
def advised(folder: Path) -> Iterator[None]:
    """Say what to do about a packing that is missing or damaged."""
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
    schema = OLD_SCHEMA if sidecar.get("schema") == OLD_SCHEMA else SCHEMA
    fields = _FIELDS | _MORE_FIELDS[schema]
    wrong = [key for key, kind in fields.items() if not isinstance(sidecar.get(key), kind)]
    if not wrong:
        expected = {"schema": schema, "split": split}
        wrong = [key for key, value in expected.items() if sidecar[key] != value]
        wrong += ["dtype"] if sidecar["dtype"] not in DTYPES else []
        wrong += ["num_tokens"] if sidecar["num_tokens"] < 1 else []
    if wrong:
        raise CheckpointError(
            f"{path}: must be the {split} sidecar of a packing (schema {SCHEMA}), "
            f"got other or no values for {', '.join(wrong)}."
        )
    return sidecar
