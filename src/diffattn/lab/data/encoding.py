"""Encode documents as token ids, in constant memory."""

import hashlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from diffattn.lab.data.corpora import Document

BATCH_CHARS = 1 << 20  # encodings take some hundred bytes per token until they are written


@dataclass(slots=True)
class Batch:
    """Texts to encode, each a document or a piece of one. The lists have one entry per text."""

    splits: list[str] = field(default_factory=list)
    texts: list[str] = field(default_factory=list)
    ended: list[tuple[str, int] | None] = field(default_factory=list)
    """Name and UTF-8 bytes of the document, for its last piece; ``None`` for other pieces."""
    num_chars: int = 0
    corpus_hash: str = ""
    """SHA-256 of all documents of the corpus that were read when the batch was full."""


@dataclass(slots=True)
class EncodedBatch:
    """A batch and its token ids."""

    batch: Batch
    ids: bytes
    """Token ids of all texts, in order."""
    lengths: list[int]
    """Number of token ids of each text."""


def batches(assigned: Iterable[tuple[str, Document]], digest: "hashlib._Hash") -> Iterator[Batch]:
    """Group documents, cut into pieces, into batches. The same documents give the same batches.

    Args:
        digest: SHA-256 of the documents read so far. Reading ``assigned`` updates it.
    """
    batch = Batch()
    for split, document in assigned:
        *pieces, last = _pieces(document.text)
        end = (document.name, len(document.text.encode()))
        for piece, ended in [*((piece, None) for piece in pieces), (last, end)]:
            batch.splits.append(split)
            batch.texts.append(piece)
            batch.ended.append(ended)
            batch.num_chars += len(piece) + 1
            if batch.num_chars >= BATCH_CHARS:
                batch.corpus_hash = digest.hexdigest()
                yield batch
                batch = Batch()
    if batch.texts:
        batch.corpus_hash = digest.hexdigest()
        yield batch


def encode(waiting: Iterator[Batch], encoder: Any, dtype: np.dtype[Any]) -> Iterator[EncodedBatch]:
    """Encode batches one after the other, each with the threads of the ``tokenizers`` library.

    Args:
        encoder: See :func:`diffattn.lab.data.tokenizer.plain_encoder`.
    """
    for batch in waiting:
        encodings = encoder.encode_batch_fast(batch.texts, add_special_tokens=False)
        ids = [np.array(encoding.ids, dtype=dtype) for encoding in encodings]
        yield EncodedBatch(batch, b"".join(x.tobytes() for x in ids), [len(x) for x in ids])


def _pieces(text: str) -> list[str]:
    """Cut a text into pieces of at most ``BATCH_CHARS``, after line ends where possible."""
    pieces, start = [], 0
    while len(text) - start > BATCH_CHARS:
        stop = start + BATCH_CHARS
        stop = text.rfind("\n", start, stop) + 1 or stop
        pieces.append(text[start:stop])
        start = stop
    return [*pieces, text[start:]]
