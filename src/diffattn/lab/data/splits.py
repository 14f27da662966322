"""The two splits of a corpus: which documents they get, and how their files are written."""

import hashlib
import json
import os
from collections.abc import Iterable, Iterator
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from diffattn.errors import CheckpointError, ConfigError
from diffattn.lab.data.corpora import Document

SPLITS = ("train", "validation")
OFFSET_DTYPE = np.dtype("<i8")  # 8 bytes, as SplitWriter writes them
SUFFIXES = ("bin", "idx", "names")
COUNTS = ("num_tokens", "num_bytes", "num_documents")
_READ_BYTES = 1 << 24


def assign_splits(
    documents: Iterable[Document], validation_fraction: float
) -> Iterator[tuple[str, Document]]:
    """Assign a split to each document, so that neither split is empty.

    A document goes to validation if its hash, scaled to [0, 1), is below ``validation_fraction``.
    A file's name is hashed, so that it keeps its split when it is edited. A row's text is hashed,
    so that equal rows are in one split. If a split would be empty, the document with the nearest
    hash goes there. The end of a single document goes to validation, under the same name.

    Documents come in order, but one comes later: it is held back until both splits have been seen.
    """
    held: tuple[float, str, Document] | None = None
    num_documents, both_seen = 0, False
    for document in documents:
        num_documents += 1
        rank = _rank(document.text if document.is_row else document.name)
        split = "validation" if rank < validation_fraction else "train"
        if held is not None and split != held[1]:
            both_seen = True
            yield held[1], held[2]
            held = None
        if both_seen:
            yield split, document
        elif held is None:
            held = rank, split, document
        elif (rank < held[0]) == (split == "train"):  # nearer to the split that is still empty
            yield held[1], held[2]
            held = rank, split, document
        else:
            yield split, document
    if held is None:
        return
    if num_documents == 1:
        yield from _cut(held[2], validation_fraction)
    else:
        yield "train" if held[1] == "validation" else "validation", held[2]


def _rank(key: str) -> float:
    """Hash of a name or text, uniform in [0, 1)."""
    # A float holds 53 bits exactly; with more bits the largest hashes would round up to 1.
    return (int.from_bytes(hashlib.sha256(key.encode()).digest()[:8], "big") >> 11) / 2**53


def _cut(document: Document, validation_fraction: float) -> Iterator[tuple[str, Document]]:
    text = document.text
    if len(text) < 2:
        raise ConfigError(
            f"pack: a corpus of one document must have at least 2 characters, got {len(text)}."
        )
    border = min(max(1, round(len(text) * (1 - validation_fraction))), len(text) - 1)
    # A line end far before the border would change the fraction more than it helps.
    border = text.rfind("\n", border // 2, border) + 1 or border
    yield "train", replace(document, text=text[:border])
    yield "validation", replace(document, text=text[border:])


class SplitWriter:
    """Append the documents of one split to its files, so that another call can continue them.

    ``SPLIT.bin`` holds the ids, ``SPLIT.idx`` the first token of each document and then the number
    of tokens as little-endian int64, ``SPLIT.names`` one JSON string per line and document.

    ``stack`` closes the files when it ends. ``recorded`` is a result of :meth:`state` from which to
    continue; ``None`` begins new files.
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
            self._files["idx"].write(bytes(8))

    def write(self, ids: np.ndarray) -> None:
        """Append token ids in the split's dtype to the document."""
        self._files["bin"].write(ids.tobytes())
        self.counts["num_tokens"] += len(ids)

    def end_document(self, name: str, num_bytes: int) -> None:
        """End the current document, whose text has ``num_bytes`` UTF-8 bytes."""
        self._files["idx"].write(self.counts["num_tokens"].to_bytes(8, "little"))
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
        while content := self.file.read(min(_READ_BYTES, recorded["bytes"] - self.size)):
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
