"""Models, texts and maps for the attention viewer, as plain values."""

from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True, kw_only=True, slots=True)
class Segment:
    """Tokens that belong together."""

    name: str
    start: int
    """First token."""
    end: int
    """The one after the last; equal to ``start`` where the segment is empty."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ViewedText:
    """A text as a tokenizer cuts it."""

    pieces: tuple[str | bytes, ...]
    """Text of every token; bytes where a character is cut."""
    begins_with_bos: bool
    segments: tuple[Segment, ...] = ()
    """They cover the text once, in order; none for a plain text."""
    notes: tuple[str, ...] = ()
    """Sentences about this text, for example that it was cut."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ViewedLayer:
    """One layer: ``H`` heads, ``T`` tokens, one map or two."""

    index: int
    """Counted from 0."""
    codes: np.ndarray
    """uint8 ``[H, maps, T (T + 1) / 2]`` of :func:`diffattn.lab.report.viewer.codes.to_codes`."""
    scales: np.ndarray | None
    """float32 ``[H, maps, T]``, of the rows of ``codes``; ``None`` where all are 1."""
    lam: np.ndarray | None
    """float32 ``[1, 1]``, or ``[H, T]`` where each token has its own; ``None`` for softmax."""
    error: float
    """Largest rounding error of a weight."""
    sums: np.ndarray | None
    """``[kinds, H, T, segments]``: attention on each segment, of A, or of A1, A2 and
    abs(A1 − λ A2)."""
    clearest: tuple[float, int, int]
    """The largest weight of the last query away from its neighbours, its head and its key."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ViewedModel:
    """One model on one text."""

    label: str
    facts: tuple[str, ...]
    """Descriptions of a few words each."""
    text: ViewedText
    layers: tuple[ViewedLayer, ...]
    num_layers: int
    """Of the model, shown or not."""
