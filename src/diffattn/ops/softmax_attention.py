"""Softmax attention with the options of ``diff_attention``: the matched baseline."""

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor

from diffattn.errors import ShapeError
from diffattn.ops import second_derivatives
from diffattn.ops.backends import chunked, custom_op, decode, reference
from diffattn.ops.backends.composed import attend
from diffattn.ops.inputs import backends
from diffattn.ops.inputs.masking import AttentionMask, in_own_dtype, isolated
from diffattn.ops.inputs.operators import transformed
from diffattn.ops.inputs.validation import (
    checked_mask,
    checked_scale,
    validate_floats,
    validate_heads,
    validate_like,
    validate_rows,
    validate_values,
)

assert second_derivatives  # registered by the import


def softmax_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    scale: float | None = None,
    causal: bool = True,
    window: int | None = None,
    key_padding_mask: Tensor | None = None,
    kv_lengths: Tensor | None = None,
    cu_seqlens: Tensor | None = None,
    backend: str = "auto",
) -> Tensor:
    r"""Softmax attention with the options of ``diff_attention``: the matched baseline.

    .. math:: O = \mathrm{softmax}(s Q K^\top) V

    Source: arXiv:1706.03762, Eq. (1).

    Args:
        q: ``[B, T, H, D]``. Tokens stand before heads, unlike PyTorch's own attention.
        k: ``[B, S, Hkv, D]``, dtype of ``q``.
        v: ``[B, S, Hkv, Dv]``, dtype of ``q``.
        scale: s, dimensionless. Default ``D ** -0.5``.
        causal: As in :func:`diffattn.diff_attention`, likewise the options up to ``cu_seqlens``.
        backend: A name from ``backends.names("softmax_attention")``, or ``"auto"``. A named
            backend never falls back to another one.

    Returns:
        ``[B, T, H, Dv]``, dtype of ``q``. A query that sees no key gets 0. NaN in keys and values
        is treated as in :func:`diffattn.diff_attention`.

    Raises:
        ShapeError: An argument is not of the documented shape, dtype, device or range.
        BackendError: The named backend cannot run these inputs here.
    """
    where = "softmax_attention"
    _validate(where, q, k, v)
    mask = checked_mask(where, q, k, causal, window, key_padding_mask, kv_lengths, cu_seqlens)
    scale, inputs = checked_scale(where, scale, q), backends.describe(q, k, v)
    chosen = backends.row(where, backends.resolve(where, backend, inputs))
    name = chosen.name
    if not (q.numel() and k.numel()):
        name = "sdpa"  # kernels differ on empty inputs
    elif mask.hides_keys and (inputs.needs_gradient or not chosen.reads_in_place):
        k, v = mask.without_unseen(q.shape[1], k, v)
    attend = partial(_FORWARD[name], scale=scale, mask=mask)
    return isolated(attend, q, k, v, mask=mask, opaque=chosen.opaque)


def softmax_attention_maps(
    q: Tensor,
    k: Tensor,
    *,
    rows: Tensor | None = None,
    scale: float | None = None,
    causal: bool = True,
    window: int | None = None,
    key_padding_mask: Tensor | None = None,
    kv_lengths: Tensor | None = None,
    cu_seqlens: Tensor | None = None,
) -> Tensor:
    """The attention map of the chosen query rows.

    Source: arXiv:1706.03762, Eq. (1).

    Args:
        q: ``[B, T, H, D]``.
        k: ``[B, S, Hkv, D]``, dtype of ``q``.
        rows: int64 ``[R]``, query positions in [0, T). Default: all.
        scale: As in :func:`softmax_attention`, likewise all options that follow.

    Returns:
        ``[B, H, T or R, S]``, float32 (float64 for float64 ``q``).

    Raises:
        ShapeError: An argument is not of the documented shape, dtype, device or range.
    """
    where = "softmax_attention_maps"
    _validate(where, q, k, k)
    mask = checked_mask(where, q, k, causal, window, key_padding_mask, kv_lengths, cu_seqlens)
    if rows is not None:
        validate_rows(where, rows, q)
    scale = checked_scale(where, scale, q)
    if q.numel() and k.numel():
        (k,) = mask.without_unseen(q.shape[1], k)
    with in_own_dtype(q.device):
        q, k = q[:, :, :, None], k[:, :, :, None]
        return reference.softmax_maps(q, k, rows=rows, scale=scale, mask=mask)[:, :, 0]


class _DifferentiableTwice(torch.autograd.Function):
    """PyTorch's attention call, with second derivatives from the formula: fused kernels have none.
    First derivatives are those of the call, except under ``create_graph=True``."""

    @staticmethod
    def forward(
        ctx: Any, out: Tensor, q: Tensor, k: Tensor, v: Tensor, scale: float, mask: AttentionMask
    ) -> Tensor:
        ctx.save_for_backward(q, k, v)
        ctx.options = {"scale": scale, "mask": mask}
        return out.detach()  # ``out`` itself would become a view: no in-place change of the result

    @staticmethod
    def backward(ctx: Any, grad_out: Tensor) -> Any:
        if not torch.is_grad_enabled():
            return grad_out, None, None, None, None, None
        inputs = [x.view_as(x) if x.requires_grad else x for x in ctx.saved_tensors]
        out = reference.softmax_attention(*inputs, **ctx.options)
        wanted = [x for x in inputs if x.requires_grad]
        grads = iter(torch.autograd.grad(out, wanted, grad_out, create_graph=True))
        return None, *(next(grads) if x.requires_grad else None for x in inputs), None, None


def _sdpa(q: Tensor, k: Tensor, v: Tensor, *, scale: float, mask: AttentionMask) -> Tensor:
    out = attend(q, k, v, scale=scale, mask=mask)
    if not out.requires_grad or torch.compiler.is_compiling() or transformed(q, k, v):
        return out
    again: Tensor = _DifferentiableTwice.apply(out, q, k, v, scale, mask)
    return again


_FORWARD: dict[str, Callable[..., Tensor]] = {
    "reference": reference.softmax_attention,
    "sdpa": _sdpa,
    "chunked": chunked.softmax_attention,
    "decode": decode.softmax_attention,
    "triton": custom_op.softmax_attention,
}


def _validate(where: str, q: Tensor, k: Tensor, v: Tensor) -> None:
    validate_floats(where, "q", q)
    validate_like(where, "k", k, q)
    if q.ndim != 4 or q.shape[-1] == 0:
        raise ShapeError(f"{where}: q must be [B, T, H, D], got {list(q.shape)}.")
    if k.ndim != 4 or (k.shape[0], k.shape[-1]) != (q.shape[0], q.shape[-1]):
        raise ShapeError(
            f"{where}: k must be [B, S, Hkv, D] with B = {q.shape[0]} and D = {q.shape[-1]}, "
            f"got {list(k.shape)}."
        )
    validate_heads(where, q.shape[2], k.shape[2])
    validate_values(where, q, k, v)
