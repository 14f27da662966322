r"""Models, texts and maps for the attention viewer; attention weights as bytes.

.. math:: q = \mathrm{round}(255 \sqrt{w / s}),\quad w \approx s (q / 255)^2

In a long text most weights are near 1/T, far below 1/255, and a few are near 1. Equal steps would
round the small weights to 0. Steps in the square root resolve a weight w to about √(w s) / 255. The
scale s of a whole map is 1, because its first row holds a 1. A scale per row (its largest weight)
makes rows of small weights several times as exact, but their bytes compress badly.
"""

import base64
import zlib
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
    """uint8 ``[H, maps, T (T + 1) / 2]`` of :func:`to_codes`."""
    scales: np.ndarray | None
    """Scales of the rows of ``codes``, float32 ``[H, maps, T]``; ``None`` if all are 1."""
    lam: np.ndarray | None
    """λ, float32 ``[1, 1]``, or ``[H, T]`` if each token has its own; ``None`` for softmax."""
    error: float
    """Largest error that ``codes`` make in a weight."""
    sums: np.ndarray | None
    """Attention on each segment ``[kinds, H, T, segments]``. Kinds: A; or A1, A2 and
    abs(A1 − λ A2). ``None`` without segments."""
    clearest: tuple[float, int, int]
    """The last query's largest weight on the answer, else on a distant key; its head; its key."""


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


MAX_CODE = 255


def to_codes(maps: np.ndarray, *, row_scales: bool) -> tuple[np.ndarray, np.ndarray | None, float]:
    """Round the causal half of maps ``[..., T, T]`` to bytes; rows are queries.

    Returns:
        uint8 ``[..., T (T + 1) / 2]``, row after row; the scales, float32 ``[..., T]``, or
        ``None`` without ``row_scales``; and the largest rounding error.
    """
    rows, columns = np.tril_indices(maps.shape[-1])
    weights = maps[..., rows, columns]
    scales = maps.max(-1).astype(np.float32) if row_scales else None
    scale = 1.0 if scales is None else np.maximum(scales, np.finfo(np.float32).tiny)[..., rows]
    codes = np.rint(MAX_CODE * np.sqrt(np.clip(weights / scale, 0.0, 1.0))).astype(np.uint8)
    return codes, scales, float(np.abs(to_weights(codes, scales) - weights).max())


def to_weights(codes: np.ndarray, scales: np.ndarray | None) -> np.ndarray:
    """Turn codes back into weights, float64 of the same shape."""
    weights = np.square(codes / MAX_CODE)
    if scales is None:
        return weights
    return weights * scales[..., np.tril_indices(scales.shape[-1])[0]].astype(np.float64)


def packed(*parts: np.ndarray) -> str:
    """Pack arrays one after the other: little-endian bytes, deflated (zlib), in base64."""
    content = b"".join(
        np.ascontiguousarray(part).astype(part.dtype.newbyteorder("<"), copy=False).tobytes()
        for part in parts
    )
    # Searching for repetitions makes smooth maps smaller, but noisy ones larger: try both.
    codings = (zlib.Z_DEFAULT_STRATEGY, zlib.Z_HUFFMAN_ONLY)
    coders = (zlib.compressobj(9, strategy=strategy) for strategy in codings)
    shortest = min((coder.compress(content) + coder.flush() for coder in coders), key=len)
    return base64.b64encode(shortest).decode("ascii")
