"""The Hopper kernels as operators of PyTorch, with the Hopper or the Triton backward pass."""

import os
from dataclasses import fields
from typing import Any

import torch
from torch import Tensor

from diffattn.errors import BackendError
from diffattn.ops.backends import custom_op
from diffattn.ops.backends.grid_slices import in_slices
from diffattn.ops.inputs.kernel_support import BY_MAP
from diffattn.ops.inputs.masking import CAUSAL, AttentionMask
from diffattn.ops.inputs.operators import register_gradient, registered, run, run_backward


def diff_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    lam: Tensor,
    *,
    scale: float,
    mask: AttentionMask = CAUSAL,
    own_backward: bool = True,
) -> Tensor:
    r"""Differential attention on Hopper: one warpgroup per map, each tile of V shared.

    Arguments and result as in :func:`diffattn.ops.backends.reference.forward`, not empty and
    of the dtypes and widths in the backend's row; scale above 0, no mask besides ``causal``.
    ``own_backward`` selects the Hopper backward pass, else the Triton kernels'. Second derivatives
    are those of the definition. Without a gradient only the output is written.

    Source: arXiv:2410.05258v2, Eq. (1).

    Raises:
        BackendError: A mask besides ``causal``, or a scale that is not above 0.
    """
    if not (mask.at_most_causal and scale > 0):
        options = [f.name for f in fields(mask)[1:] if getattr(mask, f.name) is not None]
        wrong = f"a mask besides causal, {', '.join(options)}" if options else f"scale {scale}"
        raise BackendError(
            "diff_attention: backend 'hopper' needs a scale above 0 and no mask besides causal, "
            f"got {wrong}."
        )
    call = (q, k, v, lam, scale, mask.causal, own_backward)
    return run(_forward, _forward_inference, *call)


@registered("diffattn::hopper_diff_attention")
@in_slices("qkkl", "qqs")
def _forward(
    q: Tensor, k: Tensor, v: Tensor, lam: Tensor, scale: float, causal: bool, own_backward: bool
) -> tuple[Tensor, Tensor, Tensor]:
    """O, O2 and the logarithms of the softmaxes' row sums."""
    return _launch(q, k, v, lam, scale, causal, inference=False)


@registered("diffattn::hopper_diff_attention_inference")
@in_slices("qkkl", "q")
def _forward_inference(
    q: Tensor, k: Tensor, v: Tensor, lam: Tensor, scale: float, causal: bool, own_backward: bool
) -> Tensor:
    """O alone."""
    return _launch(q, k, v, lam, scale, causal, inference=True)[0]


def _launch(
    q: Tensor, k: Tensor, v: Tensor, lam: Tensor, scale: float, causal: bool, *, inference: bool
) -> tuple[Tensor, Tensor, Tensor]:
    from diffattn.ops.hopper import by_map, forward

    form = by_map if os.environ.get(BY_MAP) == "1" else forward
    with torch.cuda.device_of(q):
        return form.forward(q, k, v, lam, scale=scale, causal=causal, inference=inference)


@_forward_inference.register_fake
def _(q: Tensor, k: Tensor, v: Tensor, *rest: Any) -> Tensor:
    return custom_op.diff_attention_shapes(q, v)[0]


@_forward.register_fake
def _(q: Tensor, k: Tensor, v: Tensor, *rest: Any) -> tuple[Tensor, Tensor, Tensor]:
    return custom_op.diff_attention_shapes(q, v)


@registered("diffattn::hopper_diff_attention_backward")
@in_slices("qqkklqqs", "qkkl")
def diff_attention_backward(
    grad: Tensor,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    lam: Tensor,
    o: Tensor,
    o2: Tensor,
    lse: Tensor,
    scale: float,
    causal: bool,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Gradients of q, k, v and λ."""
    from diffattn.ops.hopper import backward as hopper

    with torch.cuda.device_of(q):
        return hopper.backward(grad, q, k, v, lam, o, o2, lse, scale=scale, causal=causal)


@diff_attention_backward.register_fake
def _(grad: Tensor, *tensors_and_options: Any) -> tuple[Tensor, ...]:
    return tuple(x.new_empty(x.shape) for x in tensors_and_options[:4])


def _keep(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
    *tensors, scale, causal, own_backward = inputs
    ctx.save_for_backward(*tensors, *output)
    ctx.options, ctx.own_backward = (scale, causal), own_backward
    ctx.mark_non_differentiable(*output[1:])
    ctx.set_materialize_grads(False)


def _differentiate(ctx: Any, grad: Tensor | None, *others: Any) -> tuple[Tensor | None, ...]:
    no_gradients = (None,) * 3  # of the options
    if grad is None:
        return (None,) * 4 + no_gradients
    call = (grad, *ctx.saved_tensors, *ctx.options)
    if ctx.own_backward:
        gradients = run_backward(ctx, diff_attention_backward, *call)
    else:
        no_mask = (None,) * 4
        gradients = run_backward(ctx, custom_op.diff_attention_backward, *call, *no_mask)
    return *gradients, *no_gradients


register_gradient(_forward, _keep, _differentiate)
