"""The Triton decode kernel as an operator of PyTorch: schema, fake kernel, refusals."""

from typing import Any

import torch
from torch import Tensor

from diffattn.errors import BackendError
from diffattn.ops.diff_attention.validation import refuse_transforms
from diffattn.ops.masking import CAUSAL, AttentionMask

_NO_GRADIENT = "must run under torch.no_grad(): it has no gradient, got inputs that require one"


def forward(
    q: Tensor, k: Tensor, v: Tensor, lam: Tensor, *, scale: float, mask: AttentionMask = CAUSAL
) -> Tensor:
    r"""Differential attention of at most 16 queries against a long cache, without a gradient.

    Arguments and result as in :func:`diffattn.ops.diff_attention.reference.forward`, of the dtypes
    and widths in the backend's row; ``cu_seqlens`` is refused: a packed row is no cache.

    Source: arXiv:2410.05258v2, Eq. (1).

    Raises:
        BackendError: A gradient or document borders are wanted.
    """
    where = "diff_attention: backend 'triton_decode'"
    refuse_transforms("diff_attention", "triton_decode")
    if torch.is_grad_enabled() and any(x.requires_grad for x in (q, k, v, lam)):
        raise BackendError(f"{where} {_NO_GRADIENT}.")
    if mask.cu_seqlens is not None:
        raise BackendError(f"{where} needs a cache without document borders, got cu_seqlens.")
    return triton_decode(q, k, v, lam, scale, *mask.flat()[:-1])


@torch.library.custom_op("diffattn::triton_decode", mutates_args=())
def triton_decode(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    lam: Tensor,
    scale: float,
    causal: bool,
    window: int | None,
    key_padding_mask: Tensor | None,
    kv_lengths: Tensor | None,
) -> Tensor:
    """The operator behind :func:`forward`; opaque to the compiler, so the kernel is not traced."""
    from diffattn.ops.diff_attention.triton import decode

    mask = AttentionMask(causal, window, key_padding_mask, kv_lengths)
    with torch.cuda.device_of(q):
        return decode.decode(q, k, v, lam, scale=scale, mask=mask)


@triton_decode.register_fake
def _fake(q: Tensor, k: Tensor, v: Tensor, *rest: Any) -> Tensor:
    return q.new_empty(*q.shape[:3], v.shape[-1])


def _refuse_backward(ctx: object, grad: Tensor) -> Tensor:
    # The operator called by itself, without the check of forward.
    raise BackendError(f"diffattn::triton_decode {_NO_GRADIENT}.")


triton_decode.register_autograd(_refuse_backward)
