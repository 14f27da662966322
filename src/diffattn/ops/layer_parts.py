"""The small steps of a layer around its attention: rotation, head norm and λ.

Each is one Triton kernel where :func:`kernels_run_on` allows it, else a formula of ``ops.inputs``.
Compiled code, ``torch.func`` transforms, float64 and second derivatives always use the formula
(second derivatives of the rotation, which is linear, its kernel).
"""

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor

from diffattn.ops.inputs import formulas, kernel_support
from diffattn.ops.inputs.operators import is_plain

_DTYPES = (torch.float32, torch.bfloat16, torch.float16)


def rotate_both(q: Tensor, k: Tensor, cos: Tensor, sin: Tensor) -> tuple[Tensor, Tensor]:
    """Queries and keys by :func:`diffattn.ops.inputs.formulas.apply_rotary`, in one kernel."""
    tables_learn = cos.requires_grad or sin.requires_grad
    if tables_learn or q.dtype != k.dtype or not _take_kernel(q, k, cos, sin):
        return formulas.apply_rotary(q, cos, sin), formulas.apply_rotary(k, cos, sin)
    for x in (q, k):
        formulas.check_tables(x, cos, sin)
    rotated: tuple[Tensor, Tensor] = _Rotation.apply(q, k, cos, sin, False)
    return rotated


def normalise_heads(x: Tensor, weight: Tensor | None, eps: float, factor: float) -> Tensor:
    """:func:`diffattn.ops.inputs.formulas.head_norm`, in one kernel.

    Source: arXiv:2410.05258v2, Eq. (3).
    """
    formula = partial(formulas.head_norm, eps=eps, factor=factor)
    tensors = (x,) if weight is None else (x, weight)
    if tensors[-1].shape not in (x.shape, x.shape[-1:]) or not _take_kernel(*tensors):
        return formula(x, weight)
    from diffattn.ops.triton import layer_parts as kernels

    kernel = partial(kernels.head_norm, eps=eps, factor=factor)
    gradients = partial(kernels.head_norm_backward, eps=eps, factor=factor)
    normed: Tensor = _ByKernel.apply(kernel, gradients, formula, x, weight)
    return normed


def lambda_of_vectors(
    lambda_q1: Tensor, lambda_k1: Tensor, lambda_q2: Tensor, lambda_k2: Tensor, lambda_init: float
) -> Tensor:
    """:func:`diffattn.ops.inputs.formulas.diff_lambda` of four vectors, in one kernel.

    Source: arXiv:2410.05258v2, Eq. (2).
    """
    vectors = lambda_q1, lambda_k1, lambda_q2, lambda_k2
    fits = all(x.dtype == torch.float32 and x.shape == vectors[0].shape for x in vectors)
    formula = partial(formulas.diff_lambda, lambda_init=lambda_init)
    if not (fits and _take_kernel(*vectors)):
        return formula(*vectors)
    from diffattn.ops.triton import layer_parts as kernels

    kernel = partial(kernels.diff_lambda, lambda_init=lambda_init)
    lam: Tensor = _ByKernel.apply(kernel, kernels.diff_lambda_backward, formula, *vectors)
    return lam


def lambda_of_logits(logits: Tensor) -> Tensor:
    """:func:`diffattn.ops.inputs.formulas.sigmoid_lambda`, in one kernel.

    Source: DIFF V2 note (January 2026), λ projection.
    """
    if not _take_kernel(logits):
        return formulas.sigmoid_lambda(logits)
    from diffattn.ops.triton import layer_parts as kernels

    def gradients(grad: Tensor, logits: Tensor) -> tuple[Tensor]:
        return (kernels.sigmoid(logits, grad),)

    lam: Tensor = _ByKernel.apply(kernels.sigmoid, gradients, formulas.sigmoid_lambda, logits)
    return lam


def kernels_run_on(device: torch.device) -> bool:
    """Whether these kernels run on a device: only if the environment asks for untested kernels,
    as no GPU has run them, and if the device runs the attention kernels."""
    if not kernel_support.untested_are_wanted() or kernel_support.why_unavailable() is not None:
        return False
    return kernel_support.takes_kernels(kernel_support.compute_capability(device))


def _take_kernel(*tensors: Tensor) -> bool:
    first = tensors[0]
    if torch.compiler.is_compiling() or not kernels_run_on(first.device) or not is_plain(*tensors):
        return False
    return all(x.dtype in _DTYPES and x.device == first.device and x.numel() for x in tensors)


class _Rotation(torch.autograd.Function):
    """Rotation of q and k. It is linear, so its gradient is the transposed rotation."""

    @staticmethod
    def forward(ctx: Any, q: Tensor, k: Tensor, cos: Tensor, sin: Tensor, transposed: bool) -> Any:
        from diffattn.ops.triton import layer_parts

        ctx.save_for_backward(cos, sin)
        ctx.transposed = transposed
        with torch.cuda.device_of(q):
            return layer_parts.rotate(q, k, cos, sin, transposed=transposed)

    @staticmethod
    def backward(ctx: Any, grad_q: Tensor, grad_k: Tensor) -> Any:
        cos, sin = ctx.saved_tensors
        if is_plain(grad_q, grad_k):
            turned = _Rotation.apply(grad_q, grad_k, cos, sin, not ctx.transposed)
        else:
            # Transposed, the halves of sin trade places and its sign turns.
            back = sin if ctx.transposed else -sin.roll(sin.shape[-1] // 2, dims=-1)
            turned = (formulas.apply_rotary(grad, cos, back) for grad in (grad_q, grad_k))
        return *turned, None, None, None


class _ByKernel(torch.autograd.Function):
    """A kernel and the kernel of its gradients; second derivatives are the formula's."""

    @staticmethod
    def forward(
        ctx: Any,
        kernel: Callable[..., Tensor],
        gradients: Callable[..., Any],
        formula: Callable[..., Tensor],
        *inputs: Any,
    ) -> Tensor:
        ctx.save_for_backward(*inputs)
        ctx.functions = gradients, formula
        with torch.cuda.device_of(inputs[0]):
            return kernel(*inputs)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Any:
        gradients, formula = ctx.functions
        again = torch.is_grad_enabled()
        if not again and is_plain(grad):
            with torch.cuda.device_of(grad):
                return None, None, None, *gradients(grad, *ctx.saved_tensors)
        with torch.enable_grad():
            needed = ctx.needs_input_grad[3:]
            # Views, so that a tensor that is given twice gets a gradient for each place.
            views = [
                x.view_as(x) if needs else x
                for x, needs in zip(ctx.saved_tensors, needed, strict=True)
            ]
            wanted = [x for x, needs in zip(views, needed, strict=True) if needs]
            results = iter(torch.autograd.grad(formula(*views), wanted, grad, create_graph=again))
        return None, None, None, *(next(results) if needs else None for needs in needed)
