"""Rows of ``items.jsonl`` that a judge can check: an output, and the document it is about.

Written by one protocol and read by the judge: ``kind`` (``"summary"`` or ``"answer"``),
``question``, ``references``, ``document``, ``read`` (see :func:`text_read`) and ``output``.
"""

from collections.abc import Sequence

JUDGED_PROTOCOL = "hallucination"
"""The protocol that writes such rows."""


def text_read(document: str, read: Sequence[int]) -> str:
    """The part of a document that a model has read.

    Args:
        document: All of it.
        read: Characters of its beginning and of its end.
    """
    head, tail = read
    return document[:head] + document[len(document) - tail :]
