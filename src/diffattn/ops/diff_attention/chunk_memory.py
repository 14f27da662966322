"""Memory of the chunked path: named pieces, written over by every chunk."""

import math
import threading

import torch
from torch import Tensor

_KEPT_BYTES = 8 * 1024 * 1024
"""The largest single piece of memory that a thread keeps for its next call."""


class _Kept(threading.local):
    """What a thread keeps from call to call."""

    def __init__(self) -> None:
        self.pieces: dict[tuple[str, torch.dtype], Tensor] = {}


def release_memory() -> None:
    """Give back what this thread keeps for its next call."""
    Memory.kept.pieces.clear()


class Memory:
    """Named memory, written over by every chunk. Small pieces are kept for the thread's next call.

    The system hands out fresh memory page by page on first touch, which can take as long as the
    arithmetic done in it.
    """

    kept = _Kept()

    def __init__(self, like: Tensor):
        self._like = like
        self._views: dict[tuple[str, tuple[int, ...]], Tensor] = {}
        self._held: dict[tuple[str, torch.dtype], Tensor] = {}

    def __call__(
        self, name: str, shape: tuple[int, ...], dtype: torch.dtype | None = None
    ) -> Tensor:
        """Unwritten memory; of the input dtype, unless said."""
        view = self._views.get((name, shape))
        if view is None:
            flat = self._flat(name, math.prod(shape), dtype or self._like.dtype)
            view = self._views[name, shape] = flat.view(shape)
        return view

    def _flat(self, name: str, size: int, dtype: torch.dtype) -> Tensor:
        kept = self.kept.pieces
        held = self._held.get((name, dtype), kept.get((name, dtype)))
        if held is None or held.numel() < size:
            with torch.inference_mode(False):  # else no later call could write to it
                held = torch.empty(size, dtype=dtype)
            if held.nbytes <= _KEPT_BYTES:
                kept[name, dtype] = held
        self._held[name, dtype] = held
        return held[:size]
