"""Tensors that are known by shape and dtype, and read when they are written."""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

Key = tuple[str, int | None]
"""Role of a tensor (see :mod:`~diffattn.models.conversion.layouts`) and its layer, ``None`` outside
the layers."""


@dataclass(frozen=True, slots=True)
class LazyTensor:
    """One tensor: ``load`` reads it, or makes it of others, each time anew."""

    shape: tuple[int, ...]
    dtype: torch.dtype
    load: Callable[[], Tensor]

    @property
    def nbytes(self) -> int:
        """Bytes on the disk."""
        return torch.Size(self.shape).numel() * self.dtype.itemsize


Weights = dict[Key, LazyTensor]


def derive(change: Callable[..., Tensor], *sources: LazyTensor) -> LazyTensor:
    """``change`` of some tensors; shape and dtype follow from the same change of empty ones.

    Without sources it makes a small tensor that comes from no file.
    """
    empty = change(*(torch.empty(x.shape, dtype=x.dtype, device="meta") for x in sources))
    return LazyTensor(
        tuple(empty.shape), empty.dtype, lambda: change(*(source.load() for source in sources))
    )
