"""Checks of what a caller passes: shapes, dtypes, devices and options."""

import torch
from torch import Tensor

from diffattn.errors import ShapeError

_FLOATS = (torch.float16, torch.bfloat16, torch.float32, torch.float64)


def validate_queries_keys(where: str, q: Tensor, k: Tensor) -> None:
    """Raise ShapeError unless ``q`` and ``k`` have the documented form."""
    if q.ndim != 5 or q.shape[3] != 2 or q.shape[-1] == 0:
        raise ShapeError(f"{where}: q must be [B, T, H, 2, D], got {list(q.shape)}.")
    batch, _, num_heads, _, head_dim = q.shape
    fits = k.ndim in (4, 5) and k.shape[0] == batch and k.shape[-1] == head_dim
    if not fits or (k.ndim == 5 and k.shape[3] != 2):
        raise ShapeError(
            f"{where}: k must be [B, S, Hkv, 2, D] or [B, S, Hkv, D] with B = {batch} and "
            f"D = {head_dim}, got {list(k.shape)}."
        )
    validate_heads(where, num_heads, k.shape[2])
    if q.dtype not in _FLOATS:
        raise ShapeError(f"{where}: q must be a floating dtype, got {q.dtype}.")
    validate_like(where, "k", k, q)


def validate_values(where: str, q: Tensor, k: Tensor, v: Tensor) -> None:
    """Raise ShapeError unless ``v`` fits ``q`` and ``k``."""
    if v.ndim != 4 or v.shape[:3] != k.shape[:3] or v.shape[-1] == 0:
        raise ShapeError(
            f"{where}: v must be [B, S, Hkv, Dv] with [B, S, Hkv] = {list(k.shape[:3])}, "
            f"got {list(v.shape)}."
        )
    validate_like(where, "v", v, q)


def validate_lambda(where: str, q: Tensor, lam: Tensor) -> None:
    """Raise ShapeError unless λ is float32, finite where that is cheap to see, and broadcasts."""
    if not isinstance(lam, Tensor):
        raise ShapeError(f"{where}: lam must be a float32 tensor, got {type(lam).__name__}.")
    if lam.dtype != torch.float32 and not (lam.dtype == q.dtype == torch.float64):
        raise ShapeError(f"{where}: lam must be float32, got {lam.dtype}.")
    if lam.device != q.device:
        raise ShapeError(f"{where}: lam must be on {q.device} like q, got {lam.device}.")
    target = q.shape[:3]
    pairs = zip(reversed(lam.shape), reversed(target), strict=False)
    if lam.ndim > 3 or any(size not in (1, want) for size, want in pairs):
        raise ShapeError(
            f"{where}: lam must be broadcastable to [B, T, H] = {list(target)}, "
            f"got {list(lam.shape)}."
        )
    if _values_are_cheap(lam) and bool(lam.isnan().any()):
        raise ShapeError(f"{where}: lam must not be NaN, got NaN.")


def validate_heads(where: str, num_heads: int, num_kv_heads: int) -> None:
    """Raise ShapeError unless the key/value heads divide the query heads."""
    if num_kv_heads == 0 or num_heads % num_kv_heads:
        raise ShapeError(
            f"{where}: the number of key/value heads must divide the {num_heads} query heads, "
            f"got {num_kv_heads}."
        )


def validate_like(where: str, name: str, x: Tensor, q: Tensor) -> None:
    """Raise ShapeError unless ``x`` has the dtype and device of ``q``."""
    if x.dtype != q.dtype:
        raise ShapeError(f"{where}: {name} must have q's dtype {q.dtype}, got {x.dtype}.")
    if x.device != q.device:
        raise ShapeError(f"{where}: {name} must be on {q.device} like q, got {x.device}.")


def validate_options(
    where: str,
    q: Tensor,
    k: Tensor,
    *,
    window: int | None,
    key_padding_mask: Tensor | None,
    kv_lengths: Tensor | None,
    cu_seqlens: Tensor | None,
) -> None:
    """Raise ShapeError unless the masking options fit ``q`` and ``k``."""
    batch, num_queries = q.shape[:2]
    num_keys = k.shape[1]
    if window is not None and (not isinstance(window, int) or window < 1):
        raise ShapeError(f"{where}: window must be an integer of 1 or more tokens, got {window!r}.")
    if key_padding_mask is not None:
        _expect(where, "key_padding_mask", key_padding_mask, torch.bool, (batch, num_keys), q)
    if kv_lengths is not None:
        _expect(where, "kv_lengths", kv_lengths, torch.int32, (batch,), q)
        if _values_are_cheap(kv_lengths) and batch:
            low, high = int(kv_lengths.min()), int(kv_lengths.max())
            if low < 0 or high > num_keys:
                raise ShapeError(
                    f"{where}: kv_lengths must lie in [0, S = {num_keys}], got {low} to {high}."
                )
    if cu_seqlens is not None:
        if kv_lengths is not None or batch != 1 or num_queries != num_keys:
            raise ShapeError(
                f"{where}: cu_seqlens describes one packed row, so it needs B = 1, T = S and no "
                f"kv_lengths, got B = {batch}, T = {num_queries}, S = {num_keys}, "
                f"kv_lengths {'set' if kv_lengths is not None else 'unset'}."
            )
        if cu_seqlens.ndim != 1 or len(cu_seqlens) < 2 or cu_seqlens.dtype != torch.int32:
            raise ShapeError(
                f"{where}: cu_seqlens must be int32 [num_docs + 1], "
                f"got {cu_seqlens.dtype} {list(cu_seqlens.shape)}."
            )
        if cu_seqlens.device != q.device:
            raise ShapeError(
                f"{where}: cu_seqlens must be on {q.device} like q, got {cu_seqlens.device}."
            )
        if _values_are_cheap(cu_seqlens):
            borders = cu_seqlens.tolist()
            if borders[0] != 0 or borders[-1] != num_keys or borders != sorted(borders):
                raise ShapeError(
                    f"{where}: cu_seqlens must rise from 0 to S = {num_keys}, got {borders[:8]}."
                )


def _expect(
    where: str, name: str, x: Tensor, dtype: torch.dtype, shape: tuple[int, ...], like: Tensor
) -> None:
    if x.dtype != dtype or tuple(x.shape) != shape:
        raise ShapeError(
            f"{where}: {name} must be {dtype} {list(shape)}, got {x.dtype} {list(x.shape)}."
        )
    if x.device != like.device:
        raise ShapeError(f"{where}: {name} must be on {like.device} like q, got {x.device}.")


def _values_are_cheap(x: Tensor) -> bool:
    """Reading a value stalls a GPU and breaks a compiled graph: look only at plain CPU tensors."""
    return x.device.type == "cpu" and not torch.compiler.is_compiling() and not _is_functional(x)


def _is_functional(x: Tensor) -> bool:
    """True inside torch.func transforms and fake tensors, whose values cannot be read."""
    return type(x) not in (
        Tensor,
        torch.nn.Parameter,
    ) or torch._C._functorch.is_functorch_wrapped_tensor(x)
