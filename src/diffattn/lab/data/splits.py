"""Assign each document to training or validation by a hash of its name or text."""

import hashlib
from collections.abc import Iterable, Iterator
from dataclasses import replace

from diffattn.errors import ConfigError
from diffattn.lab.data.corpora import Document

SPLITS = ("train", "validation")


def assign_splits(
    documents: Iterable[Document], validation_fraction: float
) -> Iterator[tuple[str, Document]]:
    """Assign a split to each document, so that neither split is empty.

    A document goes to validation if its hash, scaled to [0, 1), is below ``validation_fraction``.
    So more documents do not move others. A file's name is hashed, so that it keeps its split when
    it is edited. A row's text is hashed, so that equal rows are in one split. If a split would be
    empty, the document with the nearest hash goes there. A single document is cut in two: its end
    goes to validation, under the same name.

    Documents are iterated once, and at most two are in memory at a time. They come with their
    splits in order, but one comes later: it is held back until both splits have been seen.
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
    """Split a document in two, after the end of a line if possible."""
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
