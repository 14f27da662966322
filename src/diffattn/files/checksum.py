"""Checksums of JSON objects and files, to detect damage."""

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from diffattn.errors import CheckpointError

_FIELD = "checksum"


def sealed(value: Mapping[str, Any]) -> dict[str, Any]:
    """A JSON object with its checksum as the last field; spaces and key order do not matter."""
    assert _FIELD not in value, f"{_FIELD} is not a field of a record"
    plain = json.loads(json.dumps(value, allow_nan=False))  # in JSON all keys become strings
    return {**value, _FIELD: _checksum(plain)}


def opened(value: dict[str, Any], where: str) -> dict[str, Any]:
    """The object without its checksum, which must fit the other fields."""
    recorded = value.pop(_FIELD, None)
    if recorded == _checksum(value):
        return value
    fault = "must be as it was written, got other content than its checksum says"
    if recorded is None:
        fault = "must carry a checksum, got none (it is damaged, or older than checksums)"
    raise CheckpointError(f"{where}: {fault}.")


def file_hash(path: Path) -> str:
    """SHA-256 of a file's bytes, in hexadecimal."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _checksum(plain: Mapping[str, Any]) -> str:
    text = json.dumps(plain, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()[:16]
