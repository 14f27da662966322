"""Checks of arguments: shapes, dtypes, devices and options. ``where`` begins each error message."""

import math
import sys
from collections.abc import Callable
from numbers import Real
from typing import Any

import torch
from torch import Tensor

from diffattn.errors import ShapeError, shown
from diffattn.ops.inputs.masking import AttentionMask, num_heads_of
from diffattn.ops.inputs.numbers import LARGEST_COUNT, is_number, is_whole, plain

_FLOATS = (torch.float16, torch.bfloat16, torch.float32, torch.float64)
MAX = sys.float_info.max
"""The largest finite number."""


def validate_tensor(where: str, name: str, x: Tensor, q: Tensor | None = None) -> None:
    """Raise ShapeError unless ``x`` is a dense tensor, and on the device of ``q`` if given."""
    if not isinstance(x, Tensor):
        raise ShapeError(f"{where}: {name} must be a tensor, got {shown(x)}.")
    if x.is_nested or x.layout != torch.strided:
        layout = "nested" if x.is_nested else str(x.layout)
        raise ShapeError(f"{where}: {name} must be a dense tensor, got {layout}.")
    if q is not None and x.device != q.device:
        raise ShapeError(f"{where}: {name} must be on {q.device} like q, got {x.device}.")


def validate_floats(where: str, name: str, x: Tensor) -> None:
    """Raise ShapeError unless ``x`` is a dense tensor of floats of 16 bits or more."""
    validate_tensor(where, name, x)
    if x.dtype not in _FLOATS:
        names = ", ".join(str(dtype).removeprefix("torch.") for dtype in _FLOATS)
        raise ShapeError(f"{where}: {name} must have a dtype in {{{names}}}, got {x.dtype}.")


def validate_like(where: str, name: str, x: Tensor, q: Tensor) -> None:
    """Raise ShapeError unless ``x`` is a dense tensor with the dtype and device of ``q``."""
    validate_tensor(where, name, x, q)
    if x.dtype != q.dtype:
        raise ShapeError(f"{where}: {name} must have q's dtype {q.dtype}, got {x.dtype}.")


def validate_queries_keys(where: str, q: Tensor, k: Tensor, *, pages: bool = False) -> None:
    """Raise ShapeError unless ``q`` and ``k``, or pages of keys, have the documented form."""
    name, axes = ("k_pages", "pages, page size") if pages else ("k", "B, S")
    validate_floats(where, "q", q)
    validate_like(where, name, k, q)
    if q.ndim != 5 or q.shape[3] < 2 or q.shape[-1] == 0:
        raise ShapeError(
            f"{where}: q must be [B, T, H, 2, D] or in groups [B, T, G, R + 1, D], "
            f"got {list(q.shape)}."
        )
    batch, _, num_heads, _, head_dim = q.shape
    fits = k.shape[3:] in ((head_dim,), (2, head_dim))
    if not fits or (0 in k.shape if pages else k.shape[0] != batch):
        needs = f"D = {head_dim}" if pages else f"B = {batch} and D = {head_dim}"
        raise ShapeError(
            f"{where}: {name} must be [{axes}, Hkv, 2, D] or [{axes}, Hkv, D] with {needs}, "
            f"got {list(k.shape)}."
        )
    validate_heads(where, num_heads, k.shape[2])


def validate_values(where: str, q: Tensor, k: Tensor, v: Tensor, *, pages: bool = False) -> None:
    """Raise ShapeError unless ``v``, or pages of values, fit ``q`` and ``k``."""
    name, axes = ("v_pages", "pages, page size") if pages else ("v", "B, S")
    validate_like(where, name, v, q)
    if v.ndim != 4 or v.shape[:3] != k.shape[:3] or v.shape[-1] == 0:
        raise ShapeError(
            f"{where}: {name} must be [{axes}, Hkv, Dv] with [{axes}, Hkv] = {list(k.shape[:3])}, "
            f"got {list(v.shape)}."
        )


def checked_lambda(where: str, q: Tensor, lam: Tensor | float) -> Tensor:
    """λ as a tensor; raise ShapeError if it does not fit ``q`` or holds NaN (read on CPU only)."""
    if not isinstance(lam, Tensor):
        if not isinstance(plain(lam), Real):
            raise ShapeError(f"{where}: lam must be a number or a tensor, got {shown(lam)}.")
        number = checked_number(where, "lam", lam)
        wide = torch.promote_types(q.dtype, torch.float32)
        return torch.full((), number, dtype=wide, device=q.device)
    validate_tensor(where, "lam", lam, q)
    if lam.dtype != torch.float32 and not (lam.dtype == q.dtype == torch.float64):
        raise ShapeError(f"{where}: lam must be float32, got {lam.dtype}.")
    target = (*q.shape[:2], num_heads_of(q))
    pairs = zip(reversed(lam.shape), reversed(target), strict=False)
    if lam.ndim > 3 or any(size not in (1, want) for size, want in pairs):
        raise ShapeError(
            f"{where}: lam must be broadcastable to [B, T, H] = {list(target)}, "
            f"got {list(lam.shape)}."
        )
    if _values_of(lam, lambda x: x.isnan().any()):
        raise ShapeError(f"{where}: lam must not be NaN, got NaN.")
    return lam


def validate_heads(where: str, num_heads: int, num_kv_heads: int) -> None:
    """Raise ShapeError unless the key/value heads divide the query heads."""
    if num_kv_heads == 0 or num_heads % num_kv_heads:
        raise ShapeError(
            f"{where}: the number of key/value heads must divide the {num_heads} query heads, "
            f"got {num_kv_heads}. Heads are on axis 2, tokens on axis 1: [B, T, H, ...]."
        )


def checked_scale(where: str, scale: float | None, q: Tensor) -> float:
    """``scale``, or the default; raise ShapeError unless it is finite in the softmax's dtype."""
    if scale is None:
        return float(q.shape[-1] ** -0.5)
    limit = torch.finfo(q.dtype if q.dtype == torch.float64 else torch.float32).max
    return checked_number(where, "scale", scale, least=-limit, most=limit)


def checked_number(
    where: str, name: str, value: float, *, least: float = -MAX, most: float = MAX
) -> float:
    """``value`` as a float; raise ShapeError unless it is between ``least`` and ``most``."""
    number = plain(value)
    try:
        number = float(number) if is_number(number) else math.nan
    except OverflowError:  # an integer beyond every float
        number = math.inf
    if not least <= number <= most:
        bounds = "" if (least, most) == (-MAX, MAX) else f" from {least:g} to {most:g}"
        raise ShapeError(
            f"{where}: {name} must be a finite real number{bounds}, got {shown(value)}."
        )
    return number


def checked_mask(
    where: str,
    q: Tensor,
    k: Tensor,
    causal: bool,
    window: int | None,
    key_padding_mask: Tensor | None = None,
    kv_lengths: Tensor | None = None,
    cu_seqlens: Tensor | None = None,
) -> AttentionMask:
    """The masking options of a call; raise ShapeError unless they fit ``q`` and ``k``."""
    causal = plain(causal)
    if not isinstance(causal, bool):
        raise ShapeError(f"{where}: causal must be True or False, got {shown(causal)}.")
    window = plain(window)
    if window is not None and not (is_whole(window) and 1 <= window <= LARGEST_COUNT):
        raise ShapeError(
            f"{where}: window must be an integer from 1 to {LARGEST_COUNT} tokens, "
            f"got {shown(window)}."
        )
    batch, num_queries = q.shape[:2]
    num_keys = k.shape[1]
    if key_padding_mask is not None:
        _expect(where, "key_padding_mask", key_padding_mask, torch.bool, (batch, num_keys), q)
    if kv_lengths is not None:
        _expect(where, "kv_lengths", kv_lengths, torch.int32, (batch,), q)
        _values_within(where, "kv_lengths", kv_lengths, num_keys, f"[0, S = {num_keys}]")
    if cu_seqlens is not None:
        if kv_lengths is not None or batch != 1 or num_queries != num_keys:
            raise ShapeError(
                f"{where}: cu_seqlens describes one packed row, so it needs B = 1, T = S and no "
                f"kv_lengths, got B = {batch}, T = {num_queries}, S = {num_keys}, "
                f"kv_lengths {'set' if kv_lengths is not None else 'unset'}."
            )
        _expect(where, "cu_seqlens", cu_seqlens, torch.int32, ("num_docs + 1",), q)
        if len(cu_seqlens) < 2:
            raise ShapeError(f"{where}: cu_seqlens must have 2 borders or more, got fewer.")
        borders = _values_of(cu_seqlens)
        if borders and ((borders[0], borders[-1]) != (0, num_keys) or borders != sorted(borders)):
            listed = f"{borders}" if len(borders) <= 8 else f"{borders[:7]} ... {borders[-1]}"
            raise ShapeError(
                f"{where}: cu_seqlens must rise from 0 to S = {num_keys}, got {listed}."
            )
    return AttentionMask(causal, window, key_padding_mask, kv_lengths, cu_seqlens)


def validate_pages(where: str, q: Tensor, k_pages: Tensor, v_pages: Tensor) -> None:
    """Raise ShapeError unless the pages of a cache fit ``q``."""
    validate_queries_keys(where, q, k_pages, pages=True)
    validate_values(where, q, k_pages, v_pages, pages=True)
    for name, x in (("k_pages", k_pages), ("v_pages", v_pages)):
        if x.stride(-1) != 1:
            raise ShapeError(
                f"{where}: {name} must have channels of stride 1, got stride {x.stride(-1)}."
            )


def validate_block_table(
    where: str, q: Tensor, pages: Tensor, block_table: Tensor, kv_lengths: Tensor
) -> None:
    """Raise ShapeError unless every key of every sequence lies in a page of the pool."""
    batch, (num_pages, page_size) = q.shape[0], pages.shape[:2]
    _expect(where, "block_table", block_table, torch.int32, (batch, "table pages"), q)
    _expect(where, "kv_lengths", kv_lengths, torch.int32, (batch,), q)
    table_pages = block_table.shape[1]
    reach = table_pages * page_size
    allowed = f"[0, {reach}], the reach of {table_pages} pages of {page_size}"
    lengths = _values_within(where, "kv_lengths", kv_lengths, reach, allowed)
    if not lengths:
        return
    for row, (length, table) in enumerate(zip(lengths, _values_of(block_table), strict=True)):
        outside = [x for x in table[: -(-length // page_size)] if not 0 <= x < num_pages]
        if outside:
            raise ShapeError(
                f"{where}: block_table must name pages in [0, {num_pages}), got {outside[0]} for "
                f"sequence {row}."
            )


def validate_rows(where: str, rows: Tensor, q: Tensor) -> None:
    """Raise ShapeError unless ``rows`` holds query positions, on q's device or on CPU."""
    validate_tensor(where, "rows", rows)
    if rows.ndim != 1 or rows.dtype != torch.int64:
        raise ShapeError(f"{where}: rows must be int64 [R], got {rows.dtype} {list(rows.shape)}.")
    if rows.device not in (q.device, torch.device("cpu")):
        raise ShapeError(f"{where}: rows must be on {q.device} like q, got {rows.device}.")
    num_queries = q.shape[1]
    _values_within(where, "rows", rows, num_queries - 1, f"[0, T = {num_queries})")


def _values_within(where: str, name: str, x: Tensor, most: int, allowed: str) -> Any:
    """Values of ``x`` as far as they can be read; raise ShapeError unless all are in [0, most]."""
    values = _values_of(x)
    if values and (min(values) < 0 or max(values) > most):
        raise ShapeError(
            f"{where}: {name} must lie in {allowed}, got {min(values)} to {max(values)}."
        )
    return values


def _expect(
    where: str, name: str, x: Tensor, dtype: torch.dtype, shape: tuple[int | str, ...], q: Tensor
) -> None:
    """Raise ShapeError unless ``x`` has this dtype, shape (a string: any size) and device."""
    validate_tensor(where, name, x, q)
    fits = x.ndim == len(shape) and all(
        isinstance(size, str) or size == n for size, n in zip(shape, x.shape, strict=True)
    )
    if x.dtype != dtype or not fits:
        form = ", ".join(map(str, shape))
        raise ShapeError(
            f"{where}: {name} must be {dtype} [{form}], got {x.dtype} {list(x.shape)}."
        )


def _values_of(x: Tensor, reduce: Callable[[Tensor], Tensor] = Tensor.detach) -> Any:
    """``reduce(x)`` as Python numbers, or ``None`` where values cannot be read or that is slow."""
    # Reading from an accelerator waits for the device, in compiled code it breaks the graph, and
    # fake tensors and similar classes have no values.
    plain_class = type(x) in (Tensor, torch.nn.Parameter)
    if x.device.type != "cpu" or not plain_class or torch.compiler.is_compiling():
        return None
    try:
        return reduce(x).tolist()
    except RuntimeError:
        # Under vmap and while tracing an ordinary-looking tensor has no values, and PyTorch has no
        # public way to test for that.
        return None
