"""How the chunked backend splits a call: groups of heads, chunks of query rows, reused memory."""

import math
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from diffattn.ops.inputs.masking import AttentionMask

GROUP_BYTES = 8 * 1024 * 1024
"""Largest size of scores, keys and values of the heads computed together, to fit a cache."""
_FEW_GROUP_BYTES = 1024 * 1024
"""The same for long keys, where one or two heads keep the matrix products busy."""
_PIECE = 32 * 1024
"""Number of elements copied or summed at a time, so that temporary memory stays small."""
_KEPT_BYTES = 8 * 1024 * 1024
"""Largest single buffer that a thread keeps for its next call."""
_KEPT = threading.local()
"""Its ``vars``: buffers that a thread keeps from call to call, by name and dtype."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Problem:
    """The inputs of one call. ``maps`` is 2, or 1 for softmax attention."""

    q: Tensor
    """``[B, T, H, maps, D]``."""
    k: Tensor
    """``[B, S, Hkv, maps, D]``, or ``[B, S, Hkv, 1, D]`` if the maps share keys."""
    v: Tensor
    """``[B, S, Hkv, Dv]``."""
    lam: Tensor | None
    """λ ``[B, T, H]``, any strides; ``None`` for one map."""
    scale: float
    mask: AttentionMask


@dataclass(frozen=True, kw_only=True, slots=True)
class Chunk:
    """C query positions and the range of keys that any of them sees.

    A score is hidden by taking the minimum with a limit of −inf; a limit of +inf leaves it.
    """

    rows: slice
    keys: slice
    limits: list[tuple[slice, Tensor]]
    """Columns of the chunk's scores, and their limits ``[batch rows or 1, 1, C or 1, columns]``."""
    blind: Tensor | None
    """``[batch rows or 1, 1, C, 1]``, True at queries that see no key; ``None``: no such query."""


def release_memory() -> None:
    """Free the buffers that this thread keeps for its next call."""
    vars(_KEPT).clear()


def product(a: Tensor, b: Tensor, alpha: float, beta: float, out: Tensor) -> Tensor:
    """``out = alpha a b + beta out`` by PyTorch: a ``[G, n, m]``, b ``[G, m, p]``."""
    if alpha == 0.0:  # in bfloat16 PyTorch then leaves ``out`` as it is
        return out.mul_(beta) if beta else out.zero_()
    return torch.baddbmm(out, a, b, beta=beta, alpha=alpha, out=out)


class Memory:
    """Named buffers, overwritten by every chunk. Small buffers are kept for the thread's next call.

    The first write to fresh memory can take as long as the arithmetic.
    """

    def __init__(self, like: Tensor):
        self._like = like
        self._views: dict[tuple[str, tuple[int, ...]], Tensor] = {}
        self._held: dict[tuple[str, torch.dtype], Tensor] = {}

    def __call__(
        self, name: str, shape: tuple[int, ...], dtype: torch.dtype | None = None
    ) -> Tensor:
        """A buffer with unspecified contents; ``dtype``: by default that of the inputs."""
        view = self._views.get((name, shape))
        if view is not None:
            return view
        kept: Any = vars(_KEPT)
        key, size = (name, dtype or self._like.dtype), math.prod(shape)
        memory = self._held.get(key, kept.get(key))
        if memory is None or memory.numel() < size:
            with torch.inference_mode(False):  # else no later call could write to it
                memory = torch.empty(size, dtype=key[1])
            if memory.nbytes <= _KEPT_BYTES:
                kept[key] = memory
        self._held[key] = memory
        view = self._views[name, shape] = memory[:size].view(shape)
        return view


class Group:
    """A slice of key/value heads of a slice of batch rows, computed together.

    G is the number of (batch row, key/value head) pairs. R is the number of rows of a chunk: query
    positions times the query heads that share a key/value head. Inputs are copied into packed
    buffers of :class:`Memory` first.
    """

    def __init__(
        self, problem: Problem, memory: Memory, batch: slice, heads: slice, chunks: list[Chunk]
    ):
        self._problem, self.memory, self.chunks = problem, memory, chunks
        self._batch, self._heads = batch, heads
        repeat = problem.q.shape[2] // problem.k.shape[2]
        self._query_heads = slice(heads.start * repeat, heads.stop * repeat)
        keys = problem.k[batch, :, heads].expand(-1, -1, -1, problem.q.shape[3], -1)
        values = problem.v[batch, :, heads, None]
        self._num_rows, self.size = len(values), values.shape[0] * values.shape[2]
        # One head in float32 or float64 is read in place. All others are packed: oneDNN is up to
        # three times slower on strided bfloat16, and several heads have no common stride.
        self._in_place = self.size == 1 and keys.dtype != torch.bfloat16
        if self._in_place:
            self.keys, self.values = keys[0, :, 0].transpose(0, 1), values[0, :, 0].transpose(0, 1)
            self.keys_t = self.keys.mT
            return
        self.keys = self._packed("keys", keys)  # [maps * G, S, D]
        self.keys_t = self.transposed("keysT", self.keys)  # [maps * G, D, S]
        self.values = self._packed("product", values)  # [G, S, Dv], until the first add_product

    def _packed(self, name: str, x: Tensor) -> Tensor:
        """``[b, n, heads, maps, width]`` as ``[maps * b * heads, n, width]``, a copy."""
        x = x.permute(3, 0, 2, 1, 4)
        memory = self.memory(name, (x.shape[:3].numel(), *x.shape[3:]), x.dtype)
        memory.view(x.shape).copy_(x)
        return memory

    def values_t(self) -> Tensor:
        """Values transposed, ``[G, Dv, S]``. Not after ``add_product``, which overwrites them."""
        return self.values.mT if self._in_place else self.transposed("valuesT", self.values)

    def transposed(self, name: str, x: Tensor) -> Tensor:
        """``[n, a, b]`` as ``[n, b, a]``, a copy. On unpacked tensors it is 5 times slower."""
        return self.memory(name, (len(x), x.shape[2], x.shape[1]), x.dtype).copy_(x.mT)

    def rows(self, name: str, x: Tensor, chunk: Chunk) -> Tensor:
        """The chunk's rows of ``[B, T, H, maps, width]`` as ``[maps * G, R, width]``, a copy."""
        packed = self._packed(name, x[self._batch, chunk.rows, self._query_heads])
        return packed.view(x.shape[3] * self.size, -1, x.shape[4])

    def write_rows(self, x: Tensor, packed: Tensor, chunk: Chunk) -> None:
        """Write ``[maps * G, R, width]`` into the chunk's rows of ``[B, T, H, maps, width]``."""
        rows = x[self._batch, chunk.rows, self._query_heads].permute(3, 0, 2, 1, 4)
        rows.copy_(packed.view(rows.shape))

    def write_keys(self, x: Tensor, packed: Tensor) -> None:
        """Write ``[maps * G, width, S]`` into ``x``, summed over the maps if they share keys."""
        keys = x[self._batch, :, self._heads].permute(3, 0, 2, 1, 4)  # [maps or 1, b, heads, S, D]
        by_map = packed.view(-1, self.size, *packed.shape[1:])
        if len(keys) < len(by_map):
            by_map = by_map.sum(0, keepdim=True)
        num_keys = max(1, _PIECE // (self.size * packed.shape[1]))
        for target, source in zip(keys, by_map, strict=True):
            pieces = zip(target.split(num_keys, 2), source.split(num_keys, 2), strict=True)
            for some, new in pieces:  # round, then transpose: one step for both is 4 times slower
                rounded = self.memory("rounded", new.shape).copy_(new)
                some.copy_(self.transposed("untransposed", rounded).view(some.shape))

    def weights(self, queries: Tensor, chunk: Chunk) -> Tensor:
        """A1 and A2 of a chunk, ``[maps, G, R, keys]``, from queries ``[maps * G, R, D]``."""
        keys = self.keys_t[..., chunk.keys]
        scores = self.memory("weights", (*queries.shape[:2], keys.shape[-1]))
        product(queries, keys, self._problem.scale, 0.0, scores)
        maps, num_heads = len(scores) // self.size, self._query_heads.stop - self._query_heads.start
        num_rows = chunk.rows.stop - chunk.rows.start
        by_position = scores.view(maps, self._num_rows, num_heads, num_rows, scores.shape[-1])
        for columns, limit in chunk.limits:
            limited = by_position[..., columns]
            torch.minimum(limited, limit, out=limited)
        torch.softmax(scores, -1, out=scores)
        if chunk.blind is not None:
            by_position.masked_fill_(chunk.blind, 0.0)
        return scores.view(maps, self.size, *scores.shape[1:])

    def lam(self, chunk: Chunk) -> Tensor | float | None:
        """λ of the chunk's rows, ``[G, R, 1]``; a number if all share it; ``None`` for one map."""
        lam = self._problem.lam
        if lam is None:
            return None
        if not any(lam.stride()):
            return float(lam[0, 0, 0])
        return self.rows("lam", lam[..., None, None], chunk)

    def row_sums(self, weights: Tensor, per_key: Tensor) -> Tensor:
        """rowsum(weights * per_key) ``[G, R, 1]``: for A2 and dP it is D2."""
        num_rows = max(1, _PIECE // max(1, len(weights) * weights.shape[-1]))
        sums = []
        for a, b in zip(weights.split(num_rows, 1), per_key.split(num_rows, 1), strict=True):
            terms = torch.mul(a, b, out=self.memory("terms", a.shape))
            sums.append(terms.sum(-1, keepdim=True))
        return torch.cat(sums, dim=1)

    def add_product(self, total: Tensor, a: Tensor, b: Tensor, alpha: float) -> None:
        """``total += alpha a b``, where ``total`` may have a wider dtype than ``a`` and ``b``."""
        if total.dtype == a.dtype:
            product(a, b, alpha, 1.0, total)
        else:
            terms = product(a, b, alpha, 0.0, self.memory("product", total.shape))
            width = max(1, _PIECE // max(1, len(total) * total.shape[-1]))
            for piece, new in zip(total.split(width, 1), terms.split(width, 1), strict=True):
                piece.add_(self.memory("wide", piece.shape, total.dtype).copy_(new))


def groups(problem: Problem) -> Iterator[Group]:
    """All (batch row, key/value head) pairs, in groups whose scores fit the cache.

    Rows per chunk and pairs per group were measured: docs/log.md. Few rows compute less of a causal
    mask's hidden triangle; many make faster matrix products.
    """
    batch, num_queries, num_heads = problem.q.shape[:3]
    num_keys, num_kv_heads = problem.k.shape[1:3]
    repeat = num_heads // num_kv_heads
    narrow = problem.q.dtype == torch.bfloat16
    if num_keys <= (256 if narrow else 512):
        most_rows = 64  # query positions times query heads per key/value head
    elif num_keys < 2048:
        most_rows = 128
    else:
        most_rows = 256 if narrow else 192
    chunk_rows = min(max(16, most_rows // repeat), num_queries)
    maps, head_dim = problem.q.shape[3:]
    # Scores of every map, dP, and keys and values packed both ways.
    width = (maps + 1) * chunk_rows * repeat + 2 * maps * head_dim + 2 * problem.v.shape[-1]
    is_long = num_keys >= (2048 if narrow else 512)
    group_bytes = min(GROUP_BYTES, _FEW_GROUP_BYTES) if is_long else GROUP_BYTES
    size = max(1, group_bytes // (width * num_keys * problem.q.element_size()))
    rows_at_once, heads_at_once = max(1, size // num_kv_heads), min(size, num_kv_heads)
    ranges = problem.mask.key_ranges(num_queries, num_keys, device=problem.q.device)
    same_for_all = problem.mask.kv_lengths is None and problem.mask.key_padding_mask is None
    memory = Memory(problem.q)
    chunks: list[Chunk] = []
    for row in range(0, batch, rows_at_once):
        rows = slice(row, min(row + rows_at_once, batch))
        if not chunks or not same_for_all:
            chunks = list(_chunks(problem, *ranges, chunk_rows, rows))
        for head in range(0, num_kv_heads, heads_at_once):
            heads = slice(head, min(head + heads_at_once, num_kv_heads))
            yield Group(problem, memory, rows, heads, chunks)


def _chunks(
    problem: Problem, first: Tensor, last: Tensor, chunk_rows: int, batch: slice
) -> Iterator[Chunk]:
    """The chunks of one call, last rows first: they have most keys, so their buffers fit all."""
    if len(first) > 1:
        first, last = first[batch], last[batch]
    blind = first >= last  # [batch rows or 1, T]
    real = problem.mask.key_padding_mask
    if real is not None:
        real = real[batch]
        counts = torch.nn.functional.pad(real.cumsum(-1), (1, 0))  # [batch rows, S + 1]
        until = [counts.gather(-1, x.long().expand(len(real), -1)) for x in (first, last)]
        blind = blind | (until[0] >= until[1])
    # ``first`` and ``last`` never fall from one query to the next.
    begins, lefts = first.amin(0).tolist(), first.amax(0).tolist()
    rights, ends = last.amin(0).tolist(), last.amax(0).tolist()
    some_blind = blind.any(0).tolist()
    for start in reversed(range(0, len(begins), chunk_rows)):
        rows = slice(start, min(start + chunk_rows, len(begins)))
        begin = begins[start]
        end = max(begin, ends[rows.stop - 1])
        left, right = min(end, lefts[rows.stop - 1]), max(begin, rights[start])
        hidden = []  # without padding, only columns at the left and right edge hold hidden keys
        if left > begin:
            columns = torch.arange(begin, left)
            hidden.append((slice(0, left - begin), columns < first[:, rows, None]))
        if right < end:
            columns = torch.arange(right, end)
            hidden.append((slice(right - begin, end - begin), columns >= last[:, rows, None]))
        if real is not None:
            hidden.append((slice(0, end - begin), ~real[:, None, begin:end]))
        limits = []
        for some, hides in hidden:
            limit = torch.full(hides.shape, torch.inf, dtype=problem.q.dtype)
            limits.append((some, limit.masked_fill_(hides, -torch.inf)[:, None]))
        yield Chunk(
            rows=rows,
            keys=slice(begin, end),
            limits=limits,
            blind=blind[:, None, rows, None] if any(some_blind[rows]) else None,
        )
