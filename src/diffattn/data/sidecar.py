"""The JSON file beside a token file: what the tokens are and what they came from."""

import json
import os
from pathlib import Path
from typing import Any

import numpy as np

from diffattn.errors import CheckpointError

SCHEMA = 1
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
    "document_offsets": list,
    "documents": list,
}


def write_sidecar(path: Path, sidecar: dict[str, Any]) -> None:
    """Write a sidecar to disk; the caller moves it to its name when all files are whole."""
    with path.open("w", encoding="utf-8") as file:
        json.dump(sidecar, file, indent=1, ensure_ascii=False)
        file.write("\n")
        file.flush()
        os.fsync(file.fileno())


def read_sidecar(path: Path, split: str) -> dict[str, Any]:
    """Read and check the sidecar of a split.

    Raises:
        CheckpointError: The file is missing, damaged, or not such a sidecar.
    """
    try:
        sidecar = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError as error:
        raise CheckpointError(
            f"{path}: file must exist, got none. Pack the corpus first."
        ) from error
    except ValueError as error:
        raise CheckpointError(f"{path}: must be JSON, got a damaged file ({error}).") from error
    if not isinstance(sidecar, dict):
        sidecar = {}
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
