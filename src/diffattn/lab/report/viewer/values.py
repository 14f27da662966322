"""Models, texts and maps for the attention viewer, as plain values."""

from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True, kw_only=True, slots=True)
class Segment:
    """A named range of tokens."""

    name: str
    start: int
    end: int
    """Index after the last token; equal to ``start`` if the segment is empty."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ViewedText:
    """A text as a tokenizer cuts it."""

    pieces: tuple[str | bytes, ...]
    """Text of every token; bytes where a token cuts a character."""
    begins_with_bos: bool
    segments: tuple[Segment, ...] = ()
    """Segments that cover the text once, in order; empty for a plain text."""
    notes: tuple[str, ...] = ()
    """Sentences about this text, for example that it was cut."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ViewedLayer:
    """One layer: ``H`` heads, ``T`` tokens, one map or two."""

    index: int
    codes: np.ndarray
    """uint8 ``[H, maps, T (T + 1) / 2]`` of :func:`diffattn.lab.report.viewer.codes.to_codes`."""
    scales: np.ndarray | None
    """Scales of the rows of ``codes``, float32 ``[H, maps, T]``; ``None`` if all are 1."""
    lam: np.ndarray | None
    """λ, float32 ``[1, 1]``, or ``[H, T]`` if each token has its own; ``None`` for softmax."""
    error: float
    """Largest rounding error of a weight."""
    sums: np.ndarray | None
    """Attention on each segment ``[kinds, H, T, segments]``. Kinds: A; or A1, A2 and
    abs(A1 − λ A2). ``None`` without segments."""
    clearest: tuple[float, int, int]
    """The last query's largest weight on a key that is no neighbour; its head; its key."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ViewedModel:
    """One model on one text."""

    label: str
    facts: tuple[str, ...]
    """Facts about the model, in a few words each."""
    text: ViewedText
    layers: tuple[ViewedLayer, ...]
    num_layers: int
    """Number of all layers of the model, shown or not."""
