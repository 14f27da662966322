"""Calls of more batch rows or heads than one launch of a kernel takes, cut into several."""

import functools
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor

from diffattn.errors import BackendError

MAX_PROGRAMS = 65_535
"""Along the second and the third axis of a CUDA grid, where heads and batch rows are."""
_HEAD_AXES = {"q": 2, "k": 2, "l": 2, "s": 1}


def in_slices(takes: str, gives: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Let an operator that launches kernels take any number of batch rows and heads.

    A call that fits one grid is passed on as it is. Each letter stands for a tensor: ``q`` of the
    query heads ``[B, T, H, ...]``, ``k`` of the key/value heads ``[B, S, Hkv, ...]``, ``s`` of
    the query heads ``[B, H, ...]``, ``l`` λ, which broadcasts to ``[B, T, H]``, or its gradient;
    λ may be ``None``.

    Args:
        takes: The operator's tensors. After them come scale and causal, then all options of a mask
            (window, key padding mask, key lengths, document borders) or what no row has a part of.
        gives: Its results.

    Returns:
        A decorator; what it makes raises BackendError if a key/value head serves more query heads
        than one grid has programs.
    """

    def decorate(op: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(op)
        def run(*call: Any) -> Any:
            queries = call[takes.index("q")]
            batch, num_queries, num_heads = queries.shape[:3]
            if batch <= MAX_PROGRAMS and num_heads <= MAX_PROGRAMS:
                return op(*call)
            num_kv_heads = call[takes.index("k")].shape[2]
            if num_heads // num_kv_heads > MAX_PROGRAMS:
                raise BackendError(
                    f"Triton's kernels need at most {MAX_PROGRAMS} query heads per key/value head, "
                    f"got {num_heads // num_kv_heads}."
                )
            whole = (batch, num_queries, num_heads)
            tensors = [
                x.expand(whole) if form == "l" and x is not None else x
                for form, x in zip(takes, call, strict=False)
            ]
            options = call[len(takes) :]
            by_rows = [
                [
                    _as_tuple(op(*_heads(takes, rows_of, num_kv_heads, heads), *rows_options))
                    for heads in _slices(num_kv_heads, MAX_PROGRAMS * num_kv_heads // num_heads)
                ]
                for rows_of, rows_options in _rows(tensors, options, batch)
            ]
            results = []
            for index, form in enumerate(gives):
                rows = [
                    torch.cat([part[index] for part in parts], dim=_HEAD_AXES[form])
                    for parts in by_rows
                ]
                result = torch.cat(rows)
                if form == "l" and (lam := call[takes.index("l")]) is not None:
                    result = result.sum_to_size(lam.shape)
                results.append(result)
            return tuple(results) if len(gives) > 1 else results[0]

        return run

    return decorate


def _rows(
    tensors: list[Tensor | None], options: tuple[Any, ...], batch: int
) -> Iterator[tuple[list[Tensor | None], tuple[Any, ...]]]:
    """Tensors and options of some batch rows at a time."""
    for rows in _slices(batch, MAX_PROGRAMS):
        scale, causal, *mask = options
        if len(mask) == 4:
            window, padding, lengths, borders = mask  # a packed row is one row of a batch of one
            mask = [window, *(None if x is None else x[rows] for x in (padding, lengths)), borders]
        yield [None if x is None else x[rows] for x in tensors], (scale, causal, *mask)


def _heads(
    takes: str, tensors: list[Tensor | None], num_kv_heads: int, heads: slice
) -> Iterator[Tensor | None]:
    """Tensors of some key/value heads, with the query heads that read them."""
    for form, x in zip(takes, tensors, strict=True):
        if x is None:
            yield None
            continue
        axis = _HEAD_AXES[form]
        group = x.shape[axis] // num_kv_heads
        yield x.narrow(axis, heads.start * group, (heads.stop - heads.start) * group)


def _slices(total: int, size: int) -> Iterator[slice]:
    """All of ``range(total)``, at most ``size`` at a time."""
    for start in range(0, total, size):
        yield slice(start, min(start + size, total))


def _as_tuple(result: Any) -> tuple[Tensor, ...]:
    return (result,) if isinstance(result, Tensor) else result
