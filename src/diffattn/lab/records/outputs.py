"""Rows of ``items.jsonl`` that a judge can check: an output, and the document it is about.

One protocol writes them, and the judge reads them. Keys: ``kind`` (``"summary"`` or ``"answer"``),
``question``, ``references``, ``document``, ``read`` (see :func:`text_read`) and ``output``.
"""

from collections.abc import Sequence

JUDGED_PROTOCOL = "hallucination"
"""Name of the protocol that writes these rows."""


def text_read(document: str, read: Sequence[int]) -> str:
    """The part that a model has read: so many characters at the document's beginning and end."""
    head, tail = read
    return document[:head] + document[len(document) - tail :]
