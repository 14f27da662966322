"""The files of one split while they are written."""

import hashlib
import json
import os
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np

OFFSET_DTYPE = np.dtype("<i8")
SUFFIXES = ("bin", "idx", "names")


class SplitWriter:
    """Token ids, document borders and document names of one split, appended in flat memory.

    ``SPLIT.bin`` holds the ids, ``SPLIT.idx`` the first token of each document and then the number
    of tokens as little-endian int64, ``SPLIT.names`` one JSON string per document and line.

    Args:
        folder: Of the three files.
        split: ``"train"`` or ``"validation"``.
    """

    def __init__(self, folder: Path, split: str) -> None:
        self.num_tokens = self.num_bytes = self.num_documents = 0
        self._hashes = {suffix: hashlib.sha256() for suffix in SUFFIXES}
        with ExitStack() as stack:
            self._files = {
                suffix: stack.enter_context((folder / f"{split}.{suffix}").open("wb"))
                for suffix in SUFFIXES
            }
            self._open = stack.pop_all()
        self._append("idx", _offset(0))

    def write(self, ids: bytes | memoryview, num_tokens: int) -> None:
        """Append tokens of the current document."""
        self._append("bin", ids)
        self.num_tokens += num_tokens

    def end_document(self, name: str, num_bytes: int) -> None:
        """End the current document, whose text has ``num_bytes`` bytes."""
        self._append("idx", _offset(self.num_tokens))
        self._append("names", f"{json.dumps(name)}\n".encode())
        self.num_documents += 1
        self.num_bytes += num_bytes

    def described(self) -> dict[str, Any]:
        """Bring everything to disk; counts and hashes, as the sidecar holds them."""
        for file in self._files.values():
            file.flush()
            os.fsync(file.fileno())
        return {
            "num_tokens": self.num_tokens,
            "num_bytes": self.num_bytes,
            "num_documents": self.num_documents,
            "token_hash": self._hashes["bin"].hexdigest(),
            "index_hash": self._hashes["idx"].hexdigest(),
            "names_hash": self._hashes["names"].hexdigest(),
            "names_bytes": self._files["names"].tell(),
        }

    def close(self) -> None:
        """Close all files, also if one of them raises."""
        self._open.close()

    def _append(self, suffix: str, content: bytes | memoryview) -> None:
        self._files[suffix].write(content)
        self._hashes[suffix].update(content)


def _offset(token: int) -> bytes:
    return np.array(token, dtype=OFFSET_DTYPE).tobytes()
