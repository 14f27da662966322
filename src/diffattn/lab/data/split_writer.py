"""Write the files of one split, so that an interrupted packing can continue them."""

import hashlib
import json
import os
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np

from diffattn.errors import CheckpointError

OFFSET_DTYPE = np.dtype("<i8")
SUFFIXES = ("bin", "idx", "names")
COUNTS = ("num_tokens", "num_bytes", "num_documents")
_READ_BYTES = 1 << 24


class SplitWriter:
    """Append the token ids, borders and names of the documents of one split to its files.

    ``SPLIT.bin`` holds the ids, ``SPLIT.idx`` the first token of each document and then the number
    of tokens as little-endian int64, ``SPLIT.names`` one JSON string per line and document.

    Args:
        stack: Closes the files when it ends.
        recorded: A result of :meth:`state` from which to continue; ``None`` begins new files.
    """

    def __init__(
        self, folder: Path, split: str, stack: ExitStack, recorded: dict[str, Any] | None
    ) -> None:
        self.counts: dict[str, int] = {key: recorded[key] if recorded else 0 for key in COUNTS}
        known = recorded["files"] if recorded else dict.fromkeys(SUFFIXES)
        self._files = {
            suffix: _HashedFile(folder / f"{split}.{suffix}", stack, known[suffix])
            for suffix in SUFFIXES
        }
        if recorded is None:
            self._files["idx"].write(_offset(0))

    def write(self, ids: np.ndarray) -> None:
        """Append token ids in the split's dtype to the document."""
        self._files["bin"].write(ids.tobytes())
        self.counts["num_tokens"] += len(ids)

    def end_document(self, name: str, num_bytes: int) -> None:
        """End the current document, whose text has ``num_bytes`` UTF-8 bytes."""
        self._files["idx"].write(_offset(self.counts["num_tokens"]))
        self._files["names"].write(f"{json.dumps(name)}\n".encode())
        self.counts["num_documents"] += 1
        self.counts["num_bytes"] += num_bytes

    def state(self) -> dict[str, Any]:
        """Flush all files to disk; return the counts, and size and hash of every file."""
        files = {suffix: file.state() for suffix, file in self._files.items()}
        return {**self.counts, "files": files}


class _HashedFile:
    """A file that grows, and the SHA-256 of its content."""

    def __init__(self, path: Path, stack: ExitStack, recorded: dict[str, Any] | None) -> None:
        self.digest = hashlib.sha256()
        self.size = 0
        mode = "r+b" if recorded and path.exists() else "w+b"
        self.file = stack.enter_context(path.open(mode))
        if recorded is None:
            return
        while self.size < recorded["bytes"]:
            content = self.file.read(min(_READ_BYTES, recorded["bytes"] - self.size))
            if not content:
                break
            self.digest.update(content)
            self.size += len(content)
        if (self.size, self.digest.hexdigest()) != (recorded["bytes"], recorded["sha256"]):
            raise CheckpointError(
                f"{path}: must be as the interrupted packing left it, got other content. "
                f"Delete {path.parent} to pack from the start."
            )
        self.file.seek(self.size)
        self.file.truncate()

    def write(self, content: bytes) -> None:
        self.file.write(content)
        self.digest.update(content)
        self.size += len(content)

    def state(self) -> dict[str, Any]:
        self.file.flush()
        os.fsync(self.file.fileno())
        return {"bytes": self.size, "sha256": self.digest.hexdigest()}


def _offset(token: int) -> bytes:
    return np.array(token, dtype=OFFSET_DTYPE).tobytes()
