"""Which keys a query may see, and calls in which NaN at hidden keys reaches no result."""

import math
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import pad


@dataclass(frozen=True, slots=True, eq=False)
class AttentionMask:
    """The masking options of one call: which keys a query may see.

    With L the row's key length (``kv_lengths``, else S) query i stands at position ``i + L - T``,
    so the last query is at the last key (bottom-right alignment). Schemas of registered operators
    are flat: they take the options of :meth:`flat` and build the mask again. In all methods
    ``num_queries`` is T, ``num_keys`` is S, and results are on ``device``.
    """

    causal: bool = True
    """Hide keys after the query's position."""
    window: int | None = None
    """Keep only the last ``window`` keys up to the query's position, in tokens. Default: all."""
    key_padding_mask: Tensor | None = None
    """bool ``[B, S]``, True where a key is real. Default: all keys are real."""
    kv_lengths: Tensor | None = None
    """int32 ``[B]``, L: keys from L on are unwritten cache. Default: S. Clamped to [0, S]."""
    cu_seqlens: Tensor | None = None
    """int32 ``[num_docs + 1]``, document borders in a packed row; needs T = S. Default: none.
    They rise from 0 to S; keys after the last border form one more document."""

    def flat(self) -> tuple[bool, int | None, Tensor | None, Tensor | None, Tensor | None]:
        """The options one by one: the arguments of :class:`AttentionMask`, in order."""
        tensors = (self.key_padding_mask, self.kv_lengths, self.cu_seqlens)
        return self.causal, self.window, *tensors

    @property
    def at_most_causal(self) -> bool:
        """Whether no option besides ``causal`` is set."""
        return not self.hides_keys and self.cu_seqlens is None

    @property
    def hides_keys(self) -> bool:
        """Whether an option is set that may hide a key from all queries."""
        options = (self.window, self.key_padding_mask, self.kv_lengths)
        return any(option is not None for option in options)

    def _length(self, num_keys: int, device: torch.device, axes: int) -> int | Tensor:
        """L as ``[B]`` and ``axes`` axes of size 1, cut to [0, S] as nobody checks it on a device;
        S if no lengths are set."""
        if self.kv_lengths is None:
            return num_keys
        lengths = self.kv_lengths.to(device, torch.int64).clamp(0, num_keys)
        return lengths.view(-1, *(1,) * axes)

    def visible_keys(
        self, num_queries: int, num_keys: int, *, device: torch.device, rows: Tensor | None = None
    ) -> Tensor | None:
        """True where query i may see key j; ``None`` if every query sees every key.

        bool ``[B or 1, T or R, S]``; the query axis is 1 if all queries see the same keys.
        ``rows``, int64 ``[R]``, selects queries. Default: all T.
        """
        keys = torch.arange(num_keys, device=device)  # [S]
        queries = torch.arange(num_queries, device=device) if rows is None else rows.to(device)
        conditions = []
        length = self._length(num_keys, device, 2)
        if self.kv_lengths is not None:
            conditions.append(keys < length)
        if self.causal or self.window is not None:
            distance = queries[:, None] + (length - num_queries) - keys  # [B or none, T, S]
            # One query at the end of the keys sees all keys: leaving the mask out is faster.
            if self.kv_lengths is not None or num_queries > 1:
                conditions.append(distance >= 0)
            if self.window is not None:
                conditions.append(distance < self.window)
        if self.key_padding_mask is not None:
            conditions.append(self.key_padding_mask[:, None, :])
        if self.cu_seqlens is not None:
            document = torch.bucketize(keys, self.cu_seqlens.to(keys)[1:], right=True)  # [S]
            conditions.append(document[queries][:, None] == document)
        if not conditions:
            return None
        mask = conditions[0]
        for condition in conditions[1:]:
            mask = mask & condition
        return mask if mask.ndim == 3 else mask[None]

    def key_ranges(
        self, num_queries: int, num_keys: int, *, device: torch.device
    ) -> tuple[Tensor, Tensor]:
        """The keys ``first <= j < last`` that a query sees, each int32 ``[B or 1, T]`` in [0, S].

        Every option but ``key_padding_mask``, which is not counted, leaves an interval. Neither end
        falls from one query to the next. So a kernel needs two integers per query instead of a
        mask, and can skip whole blocks of keys or queries. No key is seen if ``first >= last``.
        """
        queries = torch.arange(num_queries, device=device)[None]  # [1, T]
        length = self._length(num_keys, device, 1)
        first, last = torch.zeros_like(queries), queries * 0 + length
        if self.causal or self.window is not None:
            position = queries + (length - num_queries)
            last = torch.minimum(last, (position + 1).clamp(min=0))
            if self.window is not None:
                first = (position + 1 - self.window).clamp(min=0)
        if self.cu_seqlens is not None:
            ends = self.cu_seqlens.to(queries)[1:]
            document = torch.bucketize(queries, ends, right=True)
            # Borders on a device are not checked: keys after the last border form a document too.
            first = torch.maximum(first, pad(ends, (1, 0))[document])
            last = torch.minimum(last, pad(ends, (0, 1), value=num_keys)[document])
        first, last = torch.broadcast_tensors(first, last)
        return first.to(torch.int32).contiguous(), last.to(torch.int32).contiguous()

    def without_unseen(self, num_queries: int, *tensors: Tensor) -> tuple[Tensor, ...]:
        """Keys or values with 0 at keys that no query sees: padding, cache, before every window.

        A weight of 0 is not enough: 0 · ∞ is NaN, and products with large unseen numbers may
        overflow, in the gradients too. The result is a copy if an option can hide a key from all
        queries, else ``tensors`` themselves. Each is ``[B, S, ...]``; T is 1 or more.
        """
        num_keys, device = tensors[0].shape[1], tensors[0].device
        unseen = None if self.key_padding_mask is None else ~self.key_padding_mask
        behind = self.window is not None and num_queries < num_keys
        if self.kv_lengths is not None or behind:
            keys = torch.arange(num_keys, device=device)[None]
            length = self._length(num_keys, device, 1)
            outside = keys >= length  # the last query stands at the last key
            if self.window is not None:  # no query sees the keys before the first query's window
                outside = outside | (keys < length - num_queries + 1 - self.window)
            unseen = outside if unseen is None else unseen | outside
        if unseen is None:
            return tensors
        return tuple(
            x.masked_fill(unseen.view(*unseen.shape, *(1,) * (x.ndim - 2)), 0.0) for x in tensors
        )


SCHEMA = (
    "bool causal, SymInt? window, Tensor? key_padding_mask, Tensor? kv_lengths, Tensor? cu_seqlens"
)
"""Of :meth:`AttentionMask.flat`, in the schema of a registered operator."""
CAUSAL = AttentionMask()
"""Every key up to the query's position: the default of all functions."""


def query_ranges(first: Tensor, last: Tensor, num_keys: int) -> tuple[Tensor, Tensor]:
    """The queries ``begin <= i < end`` that may see a key: the inverse of ``key_ranges``, whose
    results are the arguments. Two int32 ``[B or 1, S]``."""
    keys = torch.arange(num_keys, device=first.device, dtype=torch.int32)
    keys = keys.expand(first.shape[0], num_keys).contiguous()
    begin = torch.searchsorted(last, keys, right=True, out_int32=True)  # the first with last > j
    end = torch.searchsorted(first, keys, right=True, out_int32=True)  # the first with first > j
    return begin, end


def masked_softmax(logits: Tensor, visible: Tensor | None) -> Tensor:
    """Softmax over keys in at least float32; a query that sees no key gets a row of zeros."""
    dtype = torch.float64 if logits.dtype == torch.float64 else torch.float32
    if visible is None:
        return logits.softmax(-1, dtype=dtype)
    sees_none = ~visible.any(-1, keepdim=True)
    # A row of -inf gives NaN in the forward and backward pass, which anomaly detection reports.
    # So let such a row see all keys, then set it to 0.
    logits = logits.masked_fill(~(visible | sees_none), -torch.inf)
    return logits.softmax(-1, dtype=dtype).masked_fill(sees_none, 0.0)


def in_range(x: Tensor) -> Tensor:
    """Queries or keys in a dtype whose range holds their products: float16 becomes float32."""
    return x.float() if x.dtype == torch.float16 else x


def at_least_float32(x: Tensor) -> Tensor:
    """``x`` in float32; float64 stays."""
    return x if x.dtype == torch.float64 else x.float()


def num_heads_of(q: Tensor) -> int:
    """H = G R, the number of output heads of queries ``[B, T, G, R + 1, D]``."""
    return q.shape[2] * (q.shape[3] - 1)


def paired(q: Tensor) -> Tensor:
    """``[B, T, G, R + 1, D]`` to ``[B, T, G R, 2, D]``: each added query with a subtracted query.

    The result is a copy if R > 1, else ``q``.
    """
    if q.shape[3] == 2:
        return q
    added, subtracted = q[:, :, :, :-1], q[:, :, :, -1:]
    return torch.stack([added, subtracted.expand_as(added)], dim=4).flatten(2, 3)


def repeat_heads(x: Tensor, num_heads: int) -> Tensor:
    """``[B, S, Hkv, ...]`` to ``[B, S, H, ...]``: head i is key/value head ``i // (H // Hkv)``."""
    group = num_heads // x.shape[2]
    return x if group == 1 else x.repeat_interleave(group, dim=2)


def in_own_dtype(device: torch.device) -> Any:
    """A context without autocast: a call computes in the dtype of its inputs."""
    kind = device.type
    if torch.amp.is_autocast_available(kind) and torch.is_autocast_enabled(kind):
        return torch.autocast(kind, enabled=False)
    return nullcontext()


def isolated(
    attend: Callable[..., Tensor],
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *lam: Tensor,
    mask: AttentionMask,
    opaque: bool = False,
) -> Tensor:
    """``attend(q, k, v, *lam)``, in which NaN and infinity reach only the queries that see them.

    A weight of 0 does not stop them: 0 · NaN is NaN. In eager code on a CPU the call is repeated
    if its output is not finite: with zeros in place of all non-finite inputs. Then the outputs of
    queries that see a non-finite input are set to NaN. Elsewhere this is done at once, and only for
    ``cu_seqlens`` and backends that are not opaque. With ``causal`` alone nothing is done.
    """
    with in_own_dtype(q.device):
        if mask.at_most_causal:
            return attend(q, k, v, *lam)
        if q.device.type == "cpu" and not torch.compiler.is_compiling():
            out = attend(q, k, v, *lam)
            if _is_finite(out):
                return out
        elif mask.cu_seqlens is None or (opaque and q.device.type != "cpu"):
            return attend(q, k, v, *lam)
        k, v = mask.without_unseen(q.shape[1], k, v)
        affected = _nonfinite_seen(q, k, v, mask)
        q, k, v = (x.masked_fill(~x.isfinite(), 0.0) for x in (q, k, v))
        return attend(q, k, v, *lam).masked_fill(affected, torch.nan)


def _is_finite(out: Tensor) -> bool:
    try:
        wide = torch.promote_types(out.dtype, torch.float32)
        return math.isfinite(out.detach().sum(dtype=wide).item())
    except RuntimeError:  # under vmap and while tracing a tensor has no value to read
        return True


def _nonfinite_seen(q: Tensor, k: Tensor, v: Tensor, mask: AttentionMask) -> Tensor:
    """bool ``[B, T, H, Dv]``: True if the query, a key or a value that it sees is not finite."""
    q = q if q.ndim == 4 else paired(q)
    num_queries, num_keys = q.shape[1], k.shape[1]
    bad_keys = ~k.isfinite().flatten(3).all(-1)[..., None]  # [B, S, Hkv, 1]
    counts = pad((bad_keys | ~v.isfinite()).cumsum(1), (0, 0, 0, 0, 1, 0))  # [B, S + 1, Hkv, Dv]
    first, last = mask.key_ranges(num_queries, num_keys, device=q.device)
    shape = (q.shape[0], num_queries, *v.shape[2:])
    until_first, until_last = (
        counts.gather(1, x.long()[..., None, None].expand(shape)) for x in (first, last)
    )
    seen = (until_last > until_first).repeat_interleave(q.shape[2] // v.shape[2], dim=2)
    return seen | ~q.isfinite().flatten(3).all(-1)[..., None]
