"""Cut documents into pieces, and group these into batches of constant size."""

import hashlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

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


def _pieces(text: str) -> list[str]:
    """Cut a text into pieces of at most ``BATCH_CHARS``, after line ends where possible."""
    pieces, start = [], 0
    while len(text) - start > BATCH_CHARS:
        stop = start + BATCH_CHARS
        stop = text.rfind("\n", start, stop) + 1 or stop
        pieces.append(text[start:stop])
        start = stop
    return [*pieces, text[start:]]
