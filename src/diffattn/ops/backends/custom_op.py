"""The Triton kernels as PyTorch operators: schemas, output shapes for tracing, and gradients."""

from itertools import repeat
from typing import Any

import torch
from torch import Tensor

from diffattn.errors import BackendError
from diffattn.ops.inputs.masking import CAUSAL, SCHEMA, AttentionMask
from diffattn.ops.inputs.operators import register_gradient, registered, run, run_backward

MAX_PROGRAMS = 65_535
"""Largest size of the second and third axis of a CUDA grid, which hold heads and batch rows."""


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

    Arguments and result as in :func:`diffattn.ops.backends.composed.attend`.
    """
    call = (q[:, :, :, None], k, v, None, scale, *mask.flat())
    return run(_diff_attention, _diff_attention_inference, *call)


def register_kernel(name: str, options: str, launch: Any, backward_of: Any) -> tuple[Any, Any]:
    """The operators of a forward kernel: of O, O2 and log row sums, with a gradient; of O alone.

    Without λ there is one map: q is ``[B, T, H, 1, D]``, and O2 and λ's gradient ``[B, T, H, 0]``.
    ``options`` is the schema of scale, causal and other options. ``backward_of`` gets their values
    and returns the operator of the backward pass with its options.
    """
    tensors = "Tensor q, Tensor k, Tensor v, Tensor? lam"

    @registered(f"diffattn::{name}", schema=f"({tensors}, {options}) -> (Tensor, Tensor, Tensor)")
    def forward(*call: Any) -> tuple[Tensor, Tensor, Tensor]:
        return _launch_in_slices(launch, 3, *call, inference=False)

    @registered(f"diffattn::{name}_inference", schema=f"({tensors}, {options}) -> Tensor")
    def inference(*call: Any) -> Tensor:
        return _launch_in_slices(launch, 3, *call, inference=True)[0]

    def make_results(q: Tensor, k: Tensor, v: Tensor, *rest: Any) -> tuple[Tensor, Tensor, Tensor]:
        batch, num_queries, num_heads, num_maps = q.shape[:4]
        o = q.new_empty(batch, num_queries, num_heads, v.shape[-1])
        o2 = q.new_empty(batch, num_queries, num_heads, v.shape[-1] if num_maps == 2 else 0)
        return o, o2, q.new_empty(batch, num_heads, num_maps, num_queries, dtype=torch.float32)

    def keep(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
        ctx.save_for_backward(*inputs[:4], *output, *inputs[7:])
        ctx.options = inputs[4:7]
        ctx.mark_non_differentiable(*output[1:])
        ctx.set_materialize_grads(False)

    def differentiate(ctx: Any, grad: Tensor | None, *others: Any) -> tuple[Tensor | None, ...]:
        num_options = len(ctx.needs_input_grad) - 4
        if grad is None:
            return (None,) * (4 + num_options)
        q, k, v, lam, o, o2, lse, *masks = ctx.saved_tensors
        backward, last = backward_of(*ctx.options, *masks)
        call = (grad, q, k, v, lam, o, o2, lse, *last)
        *gradients, of_lambda = run_backward(ctx, backward, *call)
        return *gradients, None if lam is None else of_lambda, *(None,) * num_options

    forward.register_fake(make_results)
    inference.register_fake(lambda *call: make_results(*call)[0])
    register_gradient(forward, keep, differentiate)
    return forward, inference


def register_backward(name: str, options: str, launch: Any) -> Any:
    """The operator of a backward kernel, which gives the gradients of q, k, v and λ."""

    @registered(
        f"diffattn::{name}",
        schema="(Tensor grad, Tensor q, Tensor k, Tensor v, Tensor? lam, Tensor o, Tensor o2, "
        f"Tensor lse, {options}) -> (Tensor, Tensor, Tensor, Tensor)",
    )
    def backward(*call: Any) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        *gradients, of_lambda = _launch_in_slices(launch, 4, *call)
        if call[4] is not None and of_lambda.shape != call[4].shape:  # it was expanded for slices
            of_lambda = of_lambda.sum_to_size(call[4].shape)
        return *gradients, of_lambda

    @backward.register_fake
    def _(grad: Tensor, q: Tensor, k: Tensor, v: Tensor, lam: Tensor | None, *rest: Any) -> Any:
        of_lambda = q.new_empty(*q.shape[:3], 0, dtype=torch.float32) if lam is None else lam
        return tuple(x.new_empty(x.shape) for x in (q, k, v, of_lambda))

    return backward


def _launch_in_slices(launch: Any, lam_at: int, *call: Any, **options: Any) -> Any:
    """Results of a launch, or of several if a CUDA grid does not take all batch rows.

    λ, argument number ``lam_at``, broadcasts to the first axes ``[B, T, H]`` of argument 0. All
    other tensors have B rows, as borders of documents need B = 1.
    """
    with torch.cuda.device_of(call[0]):
        batch, _, num_heads = call[0].shape[:3]
        if num_heads > MAX_PROGRAMS:
            limit = f"at most {MAX_PROGRAMS} query heads"
            raise BackendError(f"Triton's kernels need {limit}, got {num_heads}.")
        if batch <= MAX_PROGRAMS:
            return launch(*call, **options)
        whole = list(call)
        if call[lam_at] is not None:
            whole[lam_at] = call[lam_at].expand(call[0].shape[:3])
        slices = [x.split(MAX_PROGRAMS) if isinstance(x, Tensor) else repeat(x) for x in whole]
        parts = [launch(*part, **options) for part in zip(*slices, strict=False)]
        return tuple(torch.cat(results) for results in zip(*parts, strict=True))


def _launch_forward(
    q: Tensor, k: Tensor, v: Tensor, lam: Tensor | None, scale: float, *mask: Any, inference: bool
) -> tuple[Tensor, Tensor, Tensor]:
    from diffattn.ops.triton import forward, launch

    seen = launch.key_mask(q, k, AttentionMask(*mask))
    return forward.forward(q, k, v, lam, scale=scale, mask=seen, inference=inference)


def _launch_backward(grad: Tensor, q: Tensor, k: Tensor, *call: Any) -> tuple[Tensor, ...]:
    from diffattn.ops.triton import backward, launch

    *tensors, scale = call[:6]
    seen = launch.key_mask(q, k, AttentionMask(*call[6:]), gradient=True)
    return backward.backward(grad, q, k, *tensors, scale=scale, mask=seen)


_OPTIONS = f"float scale, {SCHEMA}"
diff_attention_backward = register_backward(
    "triton_diff_attention_backward", _OPTIONS, _launch_backward
)
_diff_attention, _diff_attention_inference = register_kernel(
    "triton_diff_attention",
    _OPTIONS,
    _launch_forward,
    lambda *options: (diff_attention_backward, options),
)
