"""The Triton kernels as PyTorch operators: schemas, output shapes for tracing, and gradients."""

from typing import Any

import torch
from torch import Tensor

from diffattn.ops.backends.grid_slices import in_slices
from diffattn.ops.inputs.masking import CAUSAL, AttentionMask
from diffattn.ops.inputs.operators import register_gradient, registered, run, run_backward


def diff_attention(
    q: Tensor, k: Tensor, v: Tensor, lam: Tensor, *, scale: float, mask: AttentionMask = CAUSAL
) -> Tensor:
    r"""Differential attention in one pass over the keys; V is read once for both maps.

    Arguments and result as in :func:`diffattn.ops.backends.reference.forward`, not empty and
    of the dtypes and widths in the backend's row. dQ is summed in an order that may change from run
    to run, except under ``torch.use_deterministic_algorithms``. Second derivatives are those of the
    definition. Without a gradient only the output is written.

    Source: arXiv:2410.05258v2, Eq. (1).
    """
    return run(_diff_attention, _diff_attention_inference, q, k, v, lam, scale, *mask.flat())


def softmax_attention(
    q: Tensor, k: Tensor, v: Tensor, *, scale: float, mask: AttentionMask = CAUSAL
) -> Tensor:
    """Softmax attention by the same kernels with one map, as a baseline for timings.

    Source: arXiv:1706.03762, Eq. (1).

    Arguments and result as in :func:`diffattn.ops.backends.sdpa.attend`.
    """
    call = (q[:, :, :, None], k, v, None, scale, *mask.flat())
    return run(_diff_attention, _diff_attention_inference, *call)


# All schemas end with scale and the options of a mask. Without λ there is one map: q is
# [B, T, H, 1, D], and O2 and the gradient of λ are [B, T, H, 0].
_OPTIONS = (
    "float scale, bool causal, SymInt? window, Tensor? key_padding_mask, Tensor? kv_lengths, "
    "Tensor? cu_seqlens"
)


@registered(
    "diffattn::triton_diff_attention",
    schema=f"(Tensor q, Tensor k, Tensor v, Tensor? lam, {_OPTIONS}) -> (Tensor, Tensor, Tensor)",
)
@in_slices("qkkl", "qqs")
def _diff_attention(
    q: Tensor, k: Tensor, v: Tensor, lam: Tensor | None, scale: float, *mask: Any
) -> tuple[Tensor, Tensor, Tensor]:
    """O, O2 and the logarithms of the softmaxes' row sums."""
    return _launch_forward(q, k, v, lam, scale, *mask)


@registered(
    "diffattn::triton_diff_attention_inference",
    schema=f"(Tensor q, Tensor k, Tensor v, Tensor? lam, {_OPTIONS}) -> Tensor",
)
@in_slices("qkkl", "q")
def _diff_attention_inference(
    q: Tensor, k: Tensor, v: Tensor, lam: Tensor | None, scale: float, *mask: Any
) -> Tensor:
    """O alone."""
    return _launch_forward(q, k, v, lam, scale, *mask, inference=True)[0]


def _launch_forward(
    q: Tensor, k: Tensor, v: Tensor, lam: Tensor | None, scale: float, *mask: Any, **options: bool
) -> tuple[Tensor, Tensor, Tensor]:
    from diffattn.ops.triton import forward, launch

    with torch.cuda.device_of(q):
        seen = launch.key_mask(q, k, AttentionMask(*mask))
        return forward.forward(q, k, v, lam, scale=scale, mask=seen, **options)


@registered(
    "diffattn::triton_diff_attention_backward",
    schema="(Tensor grad, Tensor q, Tensor k, Tensor v, Tensor? lam, Tensor o, Tensor o2, "
    f"Tensor lse, {_OPTIONS}) -> (Tensor, Tensor, Tensor, Tensor)",
)
@in_slices("qqkklqqs", "qkkl")
def diff_attention_backward(
    grad: Tensor,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    lam: Tensor | None,
    o: Tensor,
    o2: Tensor,
    lse: Tensor,
    scale: float,
    *mask: Any,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Gradients of q, k, v and λ."""
    from diffattn.ops.triton import backward, launch

    with torch.cuda.device_of(q):
        seen = launch.key_mask(q, k, AttentionMask(*mask), gradient=True)
        return backward.backward(grad, q, k, v, lam, o, o2, lse, scale=scale, mask=seen)


@_diff_attention.register_fake
def _(q: Tensor, k: Tensor, v: Tensor, *rest: Any) -> tuple[Tensor, Tensor, Tensor]:
    return diff_attention_shapes(q, v)


@_diff_attention_inference.register_fake
def _(q: Tensor, k: Tensor, v: Tensor, *rest: Any) -> Tensor:
    return q.new_empty(*q.shape[:3], v.shape[-1])


def diff_attention_shapes(q: Tensor, v: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Unwritten O, O2 ``[B, T, H, Dv]`` and row sums' logarithms ``[B, H, maps, T]``, float32."""
    batch, num_queries, num_heads, num_maps = q.shape[:4]
    o = q.new_empty(batch, num_queries, num_heads, v.shape[-1])
    o2 = q.new_empty(batch, num_queries, num_heads, v.shape[-1] if num_maps == 2 else 0)
    return o, o2, q.new_empty(batch, num_heads, num_maps, num_queries, dtype=torch.float32)


@diff_attention_backward.register_fake
def _(grad: Tensor, q: Tensor, k: Tensor, v: Tensor, lam: Tensor | None, *rest: Any) -> Any:
    of_lambda = q.new_empty(*q.shape[:3], 0, dtype=torch.float32) if lam is None else lam
    return tuple(x.new_empty(x.shape) for x in (q, k, v, of_lambda))


def _keep(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
    *tensors, scale, causal, window, padding, lengths, borders = inputs
    ctx.save_for_backward(*tensors, *output, padding, lengths, borders)
    ctx.options = (scale, causal, window)
    ctx.mark_non_differentiable(*output[1:])
    ctx.set_materialize_grads(False)


def _differentiate(ctx: Any, grad: Tensor | None, *others: Any) -> tuple[Tensor | None, ...]:
    *saved, padding, lengths, borders = ctx.saved_tensors
    no_gradients = (None,) * 6  # of the options
    if grad is None:
        return (None,) * 4 + no_gradients
    call = (grad, *saved, *ctx.options, padding, lengths, borders)
    *gradients, of_lambda = run_backward(ctx, diff_attention_backward, *call)
    has_lambda = saved[3] is not None
    return *gradients, of_lambda if has_lambda else None, *no_gradients


register_gradient(_diff_attention, _keep, _differentiate)
