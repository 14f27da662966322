"""The public functions of differential attention: they check arguments and call a backend."""

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

from torch import Tensor

from diffattn.ops import second_derivatives
from diffattn.ops.backends import chunked, composed, custom_op, decode, flex, reference
from diffattn.ops.inputs import backends, kernel_support
from diffattn.ops.inputs.masking import AttentionMask, in_own_dtype, isolated, paired
from diffattn.ops.inputs.validation import (
    checked_lambda,
    checked_mask,
    checked_scale,
    validate_block_table,
    validate_pages,
    validate_queries_keys,
    validate_rows,
    validate_values,
)

assert second_derivatives  # registered by the import

_FORWARD: dict[str, Callable[..., Tensor]] = {
    "reference": reference.forward,
    "chunked": chunked.diff_attention,
    "decode": decode.forward,
    "triton": custom_op.diff_attention,
    "triton_decode": custom_op.decode,
    "hopper": custom_op.hopper_diff_attention,
    "composed": composed.one_call,
    "flash_diff_attn_1": composed.flash_diff_attn_1,
    "flash_diff_attn_2": composed.flash_diff_attn_2,
    "flex": flex.forward,
}
_ONE_MAP = {"chunked": chunked.softmax_attention, "triton": custom_op.softmax_attention}
"""Backend -> softmax attention that it calls twice for groups: added maps, subtracted maps."""
_IN_GROUPS = frozenset({"reference", "composed", "flash_diff_attn_1", "flash_diff_attn_2"})
"""Backends that take groups as they are. For all others, subtracted queries are repeated."""


def diff_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    lam: Tensor | float,
    *,
    scale: float | None = None,
    causal: bool = True,
    window: int | None = None,
    key_padding_mask: Tensor | None = None,
    kv_lengths: Tensor | None = None,
    cu_seqlens: Tensor | None = None,
    backend: str = "auto",
) -> Tensor:
    r"""Difference of two softmax attention maps, applied to the values.

    .. math:: O = (\mathrm{softmax}(s Q_1 K_1^\top) - \lambda\,\mathrm{softmax}(s Q_2 K_2^\top)) V

    Source: arXiv:2410.05258v2, Eq. (1); arXiv:2510.06949v1 for groups.

    Args:
        q: ``[B, T, H, 2, D]``, float16, bfloat16, float32 or float64. Axis 3 is the map: index 0
            is added, index 1 subtracted. In groups, ``[B, T, G, R + 1, D]`` with H = G R, the last
            map is subtracted. PyTorch's own attention has heads before tokens.
        k: ``[B, S, Hkv, 2, D]``, dtype of ``q``, or ``[B, S, Hkv, D]`` if both maps share keys.
            Query head i reads key/value head ``i // (H // Hkv)``.
        v: ``[B, S, Hkv, Dv]``, dtype of ``q``. Hkv divides H; in groups it divides G.
        lam: λ, a number or float32 tensor that broadcasts to ``[B, T, H]``; float64 if ``q`` is.
        scale: s, dimensionless, finite. Default ``D ** -0.5``.
        causal: Hide key j from query i when ``j > i + L - T``, L the row's key length.
        window: Keep only keys with ``0 <= i + L - T - j < window``, in tokens. Default: all.
        key_padding_mask: bool ``[B, S]``, True where a key is real.
        kv_lengths: int32 ``[B]``, L per row: keys from L on are unwritten cache. Default ``S``.
        cu_seqlens: int32 ``[num_docs + 1]``, borders of documents in one row (B = 1, T = S).
        backend: ``"auto"``, or a name from ``backends.names("diff_attention")``: no fallback.

    Returns:
        ``[B, T, H, Dv]``, dtype of ``q``; softmaxes in float32, or float64 for float64 ``q``. A
        query that sees no key gets 0. Keys and values that no query sees may be NaN and get
        gradient 0; only ``decode`` and ``triton_decode``, without a gradient and compiled or on a
        GPU, need finite ones. A NaN that one query sees can reach others on a GPU and in compiled
        code; in eager code on a CPU a mask besides ``causal`` holds it back.

    Raises:
        ShapeError: An argument is not of the documented shape, dtype, device or range.
        BackendError: The named backend cannot run these inputs here.
    """
    where = "diff_attention"
    validate_queries_keys(where, q, k)
    validate_values(where, q, k, v)
    lam, scale = checked_lambda(where, q, lam), checked_scale(where, scale, q)
    mask = checked_mask(where, q, k, causal, window, key_padding_mask, kv_lengths, cu_seqlens)
    inputs = backends.describe(q, k, v, lam, at_most_causal=mask.at_most_causal and scale > 0)
    chosen = backends.row(where, backends.resolve(where, backend, inputs))
    copies_keys = inputs.needs_gradient or not chosen.reads_in_place
    if copies_keys and mask.hides_keys and q.numel() and k.numel():
        k, v = mask.without_unseen(q.shape[1], k, v)
    q, attend = _queries_and_call(chosen.name, backend, q, k, v, scale=scale, mask=mask)
    return isolated(attend, q, k, v, lam, mask=mask, opaque=chosen.opaque)


def _queries_and_call(
    name: str, backend: str, q: Tensor, k: Tensor, v: Tensor, **options: Any
) -> tuple[Tensor, Callable[..., Tensor]]:
    """Queries in the form that a backend takes, and the function to call with them."""
    if not (q.numel() and k.numel()):
        name = "reference"  # kernels differ on empty inputs; the definition does not
    if q.shape[3] > 2 and name in _ONE_MAP:
        return q, partial(composed.two_calls, _ONE_MAP[name], **options)
    if name == "hopper" and backend == "auto":  # its own backward only at widths that passed tests
        tested = kernel_support.HOPPER_BACKWARD_TESTED
        options["own_backward"] = kernel_support.takes_hopper(tested, q.shape[-1], v.shape[-1])
    return q if name in _IN_GROUPS else paired(q), partial(_FORWARD[name], **options)


def diff_attention_maps(
    q: Tensor,
    k: Tensor,
    lam: Tensor | float,
    *,
    rows: Tensor | None = None,
    scale: float | None = None,
    causal: bool = True,
    window: int | None = None,
    key_padding_mask: Tensor | None = None,
    kv_lengths: Tensor | None = None,
    cu_seqlens: Tensor | None = None,
) -> tuple[Tensor, Tensor, Tensor]:
    r"""The two attention maps and their signed difference, for all or some query rows.

    .. math:: A_1 = \mathrm{softmax}(s Q_1 K_1^\top),\quad
              A_2 = \mathrm{softmax}(s Q_2 K_2^\top),\quad A_1 - \lambda A_2

    Rows of A1 and A2 sum to 1, rows of the difference to :math:`1 - \lambda`; a row without any
    visible key is 0. Memory grows with the number of rows, not with T.

    Source: arXiv:2410.05258v2, Eq. (1).

    Args:
        q: As in :func:`diff_attention`. In groups A2 is repeated for each of the R added maps.
        k: ``[B, S, Hkv, 2, D]`` or ``[B, S, Hkv, D]``, dtype of ``q``.
        lam: As in :func:`diff_attention`.
        rows: int64 ``[num_rows]``, query positions in [0, T). Default: all.
        scale: As in :func:`diff_attention`, likewise all options that follow.

    Returns:
        A1, A2 and A1 − λA2, ``[B, H, T or num_rows, S]``, float32 (float64 for float64 ``q``).

    Raises:
        ShapeError: An argument is not of the documented shape, dtype, device or range.
    """
    where = "diff_attention_maps"
    validate_queries_keys(where, q, k)
    lam = checked_lambda(where, q, lam)
    mask = checked_mask(where, q, k, causal, window, key_padding_mask, kv_lengths, cu_seqlens)
    if rows is not None:
        validate_rows(where, rows, q)
    scale = checked_scale(where, scale, q)
    if q.numel() and k.numel():
        (k,) = mask.without_unseen(q.shape[1], k)
    with in_own_dtype(q.device):
        return reference.maps(q, k, lam, rows=rows, scale=scale, mask=mask)


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
    return _PAGED_FORWARD[name](q, k_pages, v_pages, lam, block_table, scale=scale, mask=mask)


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


_PAGED_FORWARD: dict[str, Callable[..., Tensor]] = {
    "reference": partial(_gather, "reference"),
    "gathered": partial(_gather, "auto"),
    "triton": custom_op.paged_forward,
}
