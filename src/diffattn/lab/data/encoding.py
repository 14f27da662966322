"""From documents to token ids in flat memory."""

import hashlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from diffattn.lab.data.corpora import Document

BATCH_CHARS = 1 << 20  # encodings take some hundred bytes per token until they are written


@dataclass(slots=True)
class Batch:
    """Texts to encode, and their splits and documents."""

    splits: list[str] = field(default_factory=list)
    texts: list[str] = field(default_factory=list)
    ended: list[tuple[str, int] | None] = field(default_factory=list)
    """Name and bytes of the document whose last piece the text is; ``None``: another piece."""
    num_chars: int = 0
    corpus_hash: str = ""
    """Hash of all documents up to the end of the batch."""


@dataclass(slots=True)
class EncodedBatch:
    """A batch and its token ids."""

    batch: Batch
    ids: bytes
    """Ids of all texts, in order."""
    lengths: list[int]
    """Ids per text."""


def batches(assigned: Iterable[tuple[str, Document]], digest: "hashlib._Hash") -> Iterator[Batch]:
    """Group pieces of documents by size. The same documents give the same batches.

    Args:
        digest: Of the corpus so far; the reader of the documents updates it.
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
    """Encode batches in their order, each on the threads of the ``tokenizers`` library.

    Args:
        encoder: See :func:`diffattn.lab.data.tokenizer.plain_encoder`.
    """
    for batch in waiting:
        encodings = encoder.encode_batch_fast(batch.texts, add_special_tokens=False)
        ids = [np.array(encoding.ids, dtype=dtype) for encoding in encodings]
        yield EncodedBatch(batch, b"".join(x.tobytes() for x in ids), [len(x) for x in ids])


def _pieces(text: str) -> list[str]:
    """Cut a long text, after line ends where possible; at least one piece."""
    pieces, start = [], 0
    while len(text) - start > BATCH_CHARS:
        stop = start + BATCH_CHARS
        stop = text.rfind("\n", start, stop) + 1 or stop
        pieces.append(text[start:stop])
        start = stop
    return [*pieces, text[start:]]
