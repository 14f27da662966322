"""Count the bytes of living tensors while code runs. Fake tensors, without values, count too."""

import weakref
from collections import Counter
from collections.abc import Callable
from typing import Any

from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_iter

Sort = Callable[[Any, tuple[Any, ...], Tensor], str]
"""Names the part of memory for a new tensor. Arguments: operator, its arguments, the tensor."""


class LiveBytes(TorchDispatchMode):
    """Bytes of all storages made in the context, by part, now and at the peak of each phase.

    Memory that an operator uses and frees inside is not counted.
    """

    def __init__(self, sort: Sort) -> None:
        super().__init__()
        self.now: Counter[str] = Counter()
        """Bytes alive, by part."""
        self.peaks: dict[str, dict[str, int]] = {}
        """Phase -> part -> bytes, at the moment when the phase's sum was largest."""
        self._sort = sort
        self._phase = ""
        self._most = -1
        self._alive: dict[int, tuple[weakref.ref[Any], str, int]] = {}

    def enter(self, phase: str) -> None:
        """Begin a phase. Tensors that are alive already count in it."""
        self._phase, self._most = phase, -1
        self._note()

    def part_of(self, tensor: Tensor) -> str | None:
        """The part of a tensor's storage; ``None`` if it was made outside the context."""
        entry = self._alive.get(_key(tensor))
        return entry[1] if entry else None

    def move(self, tensor: Tensor, part: str) -> None:
        """Move a tensor's storage to another part."""
        if (entry := self._alive.get(_key(tensor))) is not None:
            reference, before, size = entry
            self._alive[_key(tensor)] = (reference, part, size)
            self.now[before] -= size
            self.now[part] += size

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        """Run an operator and count its outputs."""
        out = func(*args, **(kwargs or {}))
        for tensor in tree_iter(out):
            if isinstance(tensor, Tensor) and _key(tensor) not in self._alive:
                self._add(func, args, tensor)
        return out

    def _add(self, func: Any, args: tuple[Any, ...], tensor: Tensor) -> None:
        key, storage = _key(tensor), tensor.untyped_storage()
        part, size = self._sort(func, args, tensor), storage.nbytes()

        def gone(_: Any) -> None:
            _, now_part, _ = self._alive.pop(key)
            self.now[now_part] -= size

        self._alive[key] = (weakref.ref(storage, gone), part, size)
        self.now[part] += size
        self._note()

    def _note(self) -> None:
        total = sum(self.now.values())
        if total > self._most:
            self._most = total
            self.peaks[self._phase] = {part: size for part, size in self.now.items() if size}


def _key(tensor: Tensor) -> int:
    return int(tensor.untyped_storage()._cdata)
