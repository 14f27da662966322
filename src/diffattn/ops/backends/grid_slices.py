"""Split calls with more batch rows or heads than one kernel launch takes into several launches."""

import functools
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor

from diffattn.errors import BackendError

MAX_PROGRAMS = 65_535
"""Largest size of the second and third axis of a CUDA grid, which hold heads and batch rows."""
_HEAD_AXES = {"q": 2, "k": 2, "l": 2, "s": 1}


def in_slices(takes: str, gives: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Let an operator that launches kernels take any number of batch rows and heads.

    A call that fits one grid is passed on unchanged. A letter stands for the shape of a tensor:
    ``q`` ``[B, T, H, ...]``, ``k`` ``[B, S, Hkv, ...]``, ``s`` ``[B, H, ...]``, and ``l`` for λ or
    its gradient, which broadcasts to ``[B, T, H]``. λ may be ``None``. ``takes`` has the letters of
    the operator's tensors. After them come scale and causal, then the other four options of a mask,
    or options that are the same for every batch row. ``gives`` has the letters of the results.
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
                    op(*_heads(takes, rows_of, num_kv_heads, heads), *rows_options)
                    for heads in _slices(num_kv_heads, MAX_PROGRAMS * num_kv_heads // num_heads)
                ]
                for rows_of, rows_options in _rows(tensors, options, batch)
            ]
            results = []
            for index, form in enumerate(gives):
                rows = [
                    torch.cat(
                        [part[index] if len(gives) > 1 else part for part in parts],
                        dim=_HEAD_AXES[form],
                    )
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
    """Tensors and options for ``MAX_PROGRAMS`` batch rows at a time."""
    for rows in _slices(batch, MAX_PROGRAMS):
        scale, causal, *mask = options
        if len(mask) == 4:
            window, padding, lengths, borders = mask  # borders need B = 1, so they are not split
            mask = [window, *(None if x is None else x[rows] for x in (padding, lengths)), borders]
        yield [None if x is None else x[rows] for x in tensors], (scale, causal, *mask)


def _heads(
    takes: str, tensors: list[Tensor | None], num_kv_heads: int, heads: slice
) -> Iterator[Tensor | None]:
    """Parts of the tensors: a slice of key/value heads and the query heads that read them."""
    for form, x in zip(takes, tensors, strict=True):
        if x is None:
            yield None
            continue
        axis = _HEAD_AXES[form]
        group = x.shape[axis] // num_kv_heads
        yield x.narrow(axis, heads.start * group, (heads.stop - heads.start) * group)


def _slices(total: int, size: int) -> Iterator[slice]:
    """Slices of at most ``size`` that cover ``range(total)``."""
    for start in range(0, total, size):
        yield slice(start, min(start + size, total))
