"""Tensors with a known shape and dtype whose values are read only when they are written."""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

Key = tuple[str, int | None]
"""Role of a tensor (see :mod:`~diffattn.models.conversion.layouts`), and its layer or, outside of
the layers, ``None``."""


@dataclass(frozen=True, slots=True)
class LazyTensor:
    """One tensor. Every call of ``load`` reads it again, or computes it from other tensors."""

    shape: tuple[int, ...]
    dtype: torch.dtype
    load: Callable[[], Tensor]

    @property
    def nbytes(self) -> int:
        """Size in a file, in bytes."""
        return torch.Size(self.shape).numel() * self.dtype.itemsize


Weights = dict[Key, LazyTensor]


def derive(change: Callable[..., Tensor], *sources: LazyTensor) -> LazyTensor:
    """``change(*sources)``, computed at ``load``. Shape and dtype are found on ``meta`` now.

    Without sources, ``change`` is run once now, so it should make a small tensor.
    """
    empty = change(*(torch.empty(x.shape, dtype=x.dtype, device="meta") for x in sources))
    return LazyTensor(
        tuple(empty.shape), empty.dtype, lambda: change(*(source.load() for source in sources))
    )
