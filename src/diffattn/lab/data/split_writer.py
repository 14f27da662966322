"""Write the files of one split, so that an interrupted packing can continue them."""

import contextlib
import hashlib
import json
import os
from pathlib import Path
from typing import Any

import numpy as np

from diffattn.errors import CheckpointError

OFFSET_DTYPE = np.dtype("<i8")
SUFFIXES = ("bin", "idx", "names")
_READ_BYTES = 1 << 24


class SplitWriter:
    """Append the token ids, borders and names of the documents of one split to its files.

    ``SPLIT.bin`` holds the ids, ``SPLIT.idx`` the first token of each document and then the number
    of tokens as little-endian int64, ``SPLIT.names`` one JSON string per line and document.

    Args:
        recorded: A result of :meth:`state` from which to continue. Default: begin new files.

    Raises:
        CheckpointError: A file is missing, or its content is not the recorded content.
    """

    def __init__(self, folder: Path, split: str, recorded: dict[str, Any] | None = None) -> None:
        counts = recorded or {"num_tokens": 0, "num_bytes": 0, "num_documents": 0}
        self.num_tokens: int = counts["num_tokens"]
        self.num_bytes: int = counts["num_bytes"]
        self.num_documents: int = counts["num_documents"]
        self._files: dict[str, _HashedFile] = {}
        with contextlib.ExitStack() as stack:
            for suffix in SUFFIXES:
                known = None if recorded is None else recorded["files"][suffix]
                self._files[suffix] = _HashedFile(folder / f"{split}.{suffix}", known)
                stack.callback(self._files[suffix].file.close)
            self._open = stack.pop_all()
        if recorded is None:
            self._files["idx"].write(_offset(0))

    def write(self, ids: bytes | memoryview, num_tokens: int) -> None:
        """Append ``num_tokens`` token ids, as bytes in the split's dtype, to the document."""
        self._files["bin"].write(ids)
        self.num_tokens += num_tokens

    def end_document(self, name: str, num_bytes: int) -> None:
        """End the current document, whose text has ``num_bytes`` UTF-8 bytes."""
        self._files["idx"].write(_offset(self.num_tokens))
        self._files["names"].write(f"{json.dumps(name)}\n".encode())
        self.num_documents += 1
        self.num_bytes += num_bytes

    def state(self) -> dict[str, Any]:
        """Flush all files to disk; return the counts, and size and hash of every file."""
        return {
            "num_tokens": self.num_tokens,
            "num_bytes": self.num_bytes,
            "num_documents": self.num_documents,
            "files": {suffix: file.state() for suffix, file in self._files.items()},
        }

    def close(self) -> None:
        """Close all files, even if closing one of them raises."""
        self._open.close()


class _HashedFile:
    """A file that grows, and the SHA-256 of its content."""

    def __init__(self, path: Path, recorded: dict[str, Any] | None) -> None:
        self.digest = hashlib.sha256()
        self.size = 0
        advice = f"Delete {path.parent} to pack from the start."
        if recorded is not None and not path.exists():
            raise CheckpointError(
                f"{path}: must be as the interrupted packing left it, got no file. {advice}"
            )
        self.file = path.open("wb" if recorded is None else "r+b")
        if recorded is None:
            return
        while self.size < recorded["bytes"]:
            content = self.file.read(min(_READ_BYTES, recorded["bytes"] - self.size))
            if not content:
                break
            self.digest.update(content)
            self.size += len(content)
        if (self.size, self.digest.hexdigest()) != (recorded["bytes"], recorded["sha256"]):
            self.file.close()
            raise CheckpointError(
                f"{path}: must be as the interrupted packing left it, got other content. {advice}"
            )
        self.file.seek(self.size)
        self.file.truncate()

    def write(self, content: bytes | memoryview) -> None:
        self.file.write(content)
        self.digest.update(content)
        self.size += len(content)

    def state(self) -> dict[str, Any]:
        self.file.flush()
        os.fsync(self.file.fileno())
        return {"bytes": self.size, "sha256": self.digest.hexdigest()}


def _offset(token: int) -> bytes:
    return np.array(token, dtype=OFFSET_DTYPE).tobytes()
