"""From documents to token files in flat memory: batches of text in, bytes appended to a file."""

import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from diffattn.data.corpora import Document
from diffattn.data.sidecar import DTYPES
from diffattn.data.tokenizer import plain_encoder
from diffattn.records.checksum import file_hash

_BATCH_CHARS = 1 << 20  # encodings take some hundred bytes per token until they are written


class SplitWriter:
    """Tokens of one split on their way to disk, and what its sidecar says of them."""

    def __init__(self, folder: Path, split: str, vocab_size: int) -> None:
        self.dtype = "uint16" if vocab_size < 65_536 else "uint32"
        self.split = split
        self.vocab_size = vocab_size
        self.file = (folder / f"{split}.bin").open("wb")
        self.names: list[str] = []
        self.offsets = [0]
        self.num_tokens = 0
        self.num_bytes = 0

    def write(self, ids: list[int]) -> None:
        """Append tokens of the current document."""
        self.file.write(np.asarray(ids, dtype=DTYPES[self.dtype]).tobytes())
        self.num_tokens += len(ids)

    def end_document(self, document: Document) -> None:
        """Note that all tokens of a document are written."""
        self.names.append(document.name)
        self.num_bytes += len(document.text.encode())
        self.offsets.append(self.num_tokens)

    def finish(self) -> dict[str, Any]:
        """Bring the tokens to disk, close the file and describe it."""
        self.file.flush()
        os.fsync(self.file.fileno())
        self.file.close()
        return {
            "split": self.split,
            "dtype": self.dtype,
            "vocab_size": self.vocab_size,
            "num_tokens": self.num_tokens,
            "num_bytes": self.num_bytes,
            "num_documents": len(self.names),
            "token_hash": file_hash(Path(self.file.name)),
            "document_offsets": self.offsets,
            "documents": self.names,
        }


def encode(
    assigned: Iterable[tuple[str, Document]],
    tokenizer: Any,
    writers: Mapping[str, SplitWriter],
    on_progress: Callable[[int], None] | None,
) -> None:
    """Write every document and the end token after it to the writer of its split."""
    encoder = plain_encoder(tokenizer)
    for batch in _batches(assigned):
        texts = [text for _, text, _ in batch]
        encodings = encoder.encode_batch_fast(texts, add_special_tokens=False)
        for (split, _, ended), encoding in zip(batch, encodings, strict=True):
            writers[split].write(encoding.ids)
            if ended is not None:
                writers[split].write([tokenizer.eos_token_id])
                writers[split].end_document(ended)
        if on_progress is not None:
            on_progress(sum(writer.num_tokens for writer in writers.values()))


def _batches(
    assigned: Iterable[tuple[str, Document]],
) -> Iterator[list[tuple[str, str, Document | None]]]:
    """Group (split, piece of text, the document if the piece is its last) by size."""
    batch: list[tuple[str, str, Document | None]] = []
    num_chars = 0
    for split, document in assigned:
        *pieces, last = _pieces(document.text)
        for piece, ended in [*((piece, None) for piece in pieces), (last, document)]:
            batch.append((split, piece, ended))
            num_chars += len(piece) + 1
            if num_chars >= _BATCH_CHARS:
                yield batch
                batch, num_chars = [], 0
    if batch:
        yield batch


def _pieces(text: str) -> list[str]:
    """Cut a long text after line ends where it can; at least one piece."""
    pieces, start = [], 0
    while len(text) - start > _BATCH_CHARS:
        stop = start + _BATCH_CHARS
        stop = text.rfind("\n", start, stop) + 1 or stop
        pieces.append(text[start:stop])
        start = stop
    return [*pieces, text[start:]]
