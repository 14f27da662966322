"""A few queries per sequence against a paged cache: the public operator and its definition."""

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

from torch import Tensor

from diffattn.ops.attention import diff_attention
from diffattn.ops.backends import decode_op
from diffattn.ops.inputs import backends
from diffattn.ops.inputs.masking import AttentionMask, paired
from diffattn.ops.inputs.validation import (
    checked_lambda,
    checked_mask,
    checked_scale,
    validate_block_table,
    validate_pages,
)


def paged_decode(
    q: Tensor,
    k_pages: Tensor,
    v_pages: Tensor,
    lam: Tensor | float,
    *,
    block_table: Tensor,
    kv_lengths: Tensor,
    scale: float | None = None,
    causal: bool = True,
    window: int | None = None,
    backend: str = "auto",
) -> Tensor:
    r"""Differential attention of one or a few queries per sequence against pages of a cache.

    .. math:: O = (\mathrm{softmax}(s Q_1 K_1^\top) - \lambda\,\mathrm{softmax}(s Q_2 K_2^\top)) V

    Key j of sequence b lies in page ``block_table[b, j // page size]`` at ``j % page size``. The
    result is :func:`diffattn.diff_attention` of :func:`gathered_pages`. Sequences may share pages.

    Source: arXiv:2410.05258v2, Eq. (1).

    Args:
        q: As in :func:`diffattn.diff_attention`, likewise λ and the options that are not listed.
            Query i stands at position ``i + L - T``. A sequence with fewer than T queries has its
            queries at the end.
        k_pages: ``[pages, page size, Hkv, 2, D]``, dtype of ``q``, or without the axis of maps if
            both share keys. Channels must have stride 1; other strides are free.
        v_pages: ``[pages, page size, Hkv, Dv]``, dtype of ``q``, channels with stride 1.
        block_table: int32 ``[B, table pages]``. Entries for keys from L on have no effect. A page
            outside the pool is an error on CPU; elsewhere the nearest page of the pool is read.
        kv_lengths: int32 ``[B]``, L, at most table pages times page size; checked on CPU only.
        backend: A name from ``backends.names("paged_decode")``, or ``"auto"``. ``triton`` takes at
            most 16 queries and no gradient, and needs finite pages.

    Returns:
        ``[B, T, H, Dv]``, dtype of ``q``; softmaxes in float32, or float64 for float64 ``q``. A
        query that sees no key gets 0.

    Raises:
        ShapeError: An argument is not of the documented shape, dtype, device or range.
        BackendError: The named backend cannot run these inputs here.
    """
    where = "paged_decode"
    validate_pages(where, q, k_pages, v_pages)
    lam = checked_lambda(where, q, lam)
    validate_block_table(where, q, k_pages, block_table, kv_lengths)
    q = paired(q)
    mask = replace(checked_mask(where, q, k_pages, causal, window), kv_lengths=kv_lengths)
    scale = checked_scale(where, scale, q)
    inputs = backends.describe(q, k_pages, v_pages, lam)
    name = backends.resolve(where, backend, inputs)
    if not (q.numel() and block_table.numel()):
        name = "reference"  # empty inputs, for which kernels are not written
    return _FORWARD[name](q, k_pages, v_pages, lam, block_table, scale=scale, mask=mask)


def gathered_pages(pages: Tensor, block_table: Tensor) -> Tensor:
    """The keys or values of every sequence in order, ``[B, table pages * page size, ...]``, copied.

    Pages outside of the pool count as the nearest one.
    """
    table = block_table.clamp(0, pages.shape[0] - 1)
    rows = pages.index_select(0, table.flatten())
    return rows.view(table.shape[0], table.shape[1] * pages.shape[1], *pages.shape[2:])


def _gather(
    backend: str,
    q: Tensor,
    k_pages: Tensor,
    v_pages: Tensor,
    lam: Tensor,
    block_table: Tensor,
    *,
    scale: float,
    mask: AttentionMask,
) -> Tensor:
    k, v = gathered_pages(k_pages, block_table), gathered_pages(v_pages, block_table)
    k, v = mask.without_unseen(q.shape[1], k, v)  # unwritten pages may hold NaN
    causal, window, _, kv_lengths, _ = mask.flat()
    options: dict[str, Any] = {"causal": causal, "window": window, "kv_lengths": kv_lengths}
    return diff_attention(q, k, v, lam, scale=scale, backend=backend, **options)


_FORWARD: dict[str, Callable[..., Tensor]] = {
    "reference": partial(_gather, "reference"),
    "gathered": partial(_gather, "auto"),
    "triton": decode_op.paged_forward,
}
