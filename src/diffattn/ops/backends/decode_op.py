"""The Triton decode kernel as operators of PyTorch: schemas, output shapes, and refused inputs."""

from typing import Any

import torch
from torch import Tensor

from diffattn.errors import BackendError
from diffattn.ops.inputs.masking import CAUSAL, AttentionMask
from diffattn.ops.inputs.operators import registered


def forward(
    q: Tensor, k: Tensor, v: Tensor, lam: Tensor, *, scale: float, mask: AttentionMask = CAUSAL
) -> Tensor:
    r"""Differential attention of at most 16 queries against a long cache, without a gradient.

    Arguments and result as in :func:`diffattn.ops.backends.reference.forward`, of the dtypes
    and widths in the backend's row, without ``cu_seqlens``.

    Source: arXiv:2410.05258v2, Eq. (1).
    """
    if mask.cu_seqlens is not None:
        where = "diff_attention: backend 'triton_decode'"
        raise BackendError(f"{where} needs a cache without document borders, got cu_seqlens.")
    return triton_decode(q, k, v, lam, scale, *mask.flat()[:-1])


def paged_forward(
    q: Tensor,
    k_pages: Tensor,
    v_pages: Tensor,
    lam: Tensor | None,
    block_table: Tensor,
    *,
    scale: float,
    mask: AttentionMask,
) -> Tensor:
    r"""Differential attention of at most 16 queries per sequence against pages, read in place.

    Arguments and result as in :func:`diffattn.ops.attention.paged_decode`, of
    the dtypes and widths in the backend's row; the mask has ``kv_lengths`` and no padding.

    Source: arXiv:2410.05258v2, Eq. (1).
    """
    assert mask.kv_lengths is not None
    return triton_paged_decode(
        q, k_pages, v_pages, lam, block_table, mask.kv_lengths, scale, mask.causal, mask.window
    )


def paged_softmax(
    q: Tensor, k_pages: Tensor, v_pages: Tensor, block_table: Tensor, **options: Any
) -> Tensor:
    """Softmax attention by the kernel of :func:`paged_forward`, as a baseline in benchmarks.

    Source: arXiv:1706.03762, Eq. (1).

    Arguments are those of :func:`paged_forward` without λ and without an axis of maps: q
    ``[B, T, H, D]``, k_pages ``[pages, page size, Hkv, D]``.
    """
    return paged_forward(q, k_pages, v_pages, None, block_table, **options)


_TENSORS = "Tensor q, Tensor k, Tensor v, Tensor? lam"
_OPTIONS = "float scale, bool causal, SymInt? window"


@registered(
    "diffattn::triton_decode",
    schema=f"({_TENSORS}, {_OPTIONS}, Tensor? key_padding_mask, Tensor? kv_lengths) -> Tensor",
)
def triton_decode(*call: Any) -> Tensor:
    """The operator behind :func:`forward`. The compiler does not trace into it.

    Without λ it is softmax attention, with ``q`` ``[B, T, H, D]``.
    """
    q, k, v, lam, scale, *mask = call
    return _launch(q, k, v, lam, scale, AttentionMask(*mask))


@registered(
    "diffattn::triton_paged_decode",
    schema=f"({_TENSORS}, Tensor block_table, Tensor kv_lengths, {_OPTIONS}) -> Tensor",
)
def triton_paged_decode(*call: Any) -> Tensor:
    """The operator behind :func:`paged_forward` and :func:`paged_softmax`."""
    q, k_pages, v_pages, lam, block_table, kv_lengths, scale, causal, window = call
    mask = AttentionMask(causal, window, kv_lengths=kv_lengths)
    return _launch(q, k_pages, v_pages, lam, scale, mask, block_table)


def _launch(
    q: Tensor, k: Tensor, v: Tensor, lam: Any, scale: float, mask: AttentionMask, table: Any = None
) -> Tensor:
    from diffattn.ops.triton import decode

    with torch.cuda.device_of(q):  # a kernel is launched on the current device
        return decode.decode(q, k, v, lam, scale=scale, mask=mask, block_table=table)


for _op in (triton_decode, triton_paged_decode):
    _op.register_fake(lambda q, k, v, *rest: q.new_empty(*q.shape[:3], v.shape[-1]))
