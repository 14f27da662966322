"""Assign documents to training or validation by a hash of each document alone."""

import hashlib
from collections.abc import Iterable, Iterator
from dataclasses import replace

from diffattn.errors import ConfigError
from diffattn.lab.data.corpora import Document

SPLITS = ("train", "validation")


def assign_splits(
    documents: Iterable[Document], validation_fraction: float
) -> Iterator[tuple[str, Document]]:
    """Name the split of each document, so that neither split stays empty.

    A document is validation if its hash, as a fraction of the range of hashes, is below
    ``validation_fraction``, so that further documents move no other document. The hash is that of
    the name of a file, which keeps its split when it is edited, or of the text of a row, so that
    equal rows are in one split. If a split would stay empty, the document closest to it by hash
    goes there; the tail of an only document goes to validation, under the same name.

    Args:
        documents: Read once; at most two are in memory at a time.
        validation_fraction: Expected share of the documents in validation, between 0 and 1.

    Returns:
        Pairs of ``"train"`` or ``"validation"`` and a document, in the order of ``documents``;
        one document is held back until both splits have been seen.

    Raises:
        ConfigError: The only document is too short to be cut.
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
        elif (rank < held[0]) == (split == "train"):  # closer to the split still empty
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
    # 53 bits are what a float holds exactly; with more, the largest hashes would round up to 1.
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
