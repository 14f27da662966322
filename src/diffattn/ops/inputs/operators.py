"""Register operators with PyTorch: their gradients, and the transforms that they refuse."""

import functools
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.autograd import forward_ad

from diffattn.errors import BackendError

_PLAIN = (Tensor, torch.nn.Parameter)
TRANSFORMS = "torch.func transforms (vmap, grad, jvp) and forward-mode derivatives"


def transformed(*tensors: Any) -> bool:
    """Whether ``torch.func`` transforms a call, or a tensor carries a forward-mode derivative."""
    # PyTorch has no public function for either question.
    if torch._C._are_functorch_transforms_active():
        return True
    if forward_ad._current_level < 0:
        return False
    return torch.compiler.is_compiling() or any(
        forward_ad.unpack_dual(x).tangent is not None for x in tensors if isinstance(x, Tensor)
    )


def registered(name: str, **options: Any) -> Callable[[Callable[..., Any]], Any]:
    """``torch.library.custom_op`` of an operator that changes none of its arguments.

    The operator refuses forward-mode derivatives, which PyTorch would drop silently. Gradients of
    several outputs at once run it once per output. Its attribute ``direct`` is the function itself:
    the dispatcher takes a third of the time of a small call.
    """

    def decorate(function: Callable[..., Any]) -> Any:
        @functools.wraps(function)
        def run(*call: Any) -> Any:
            if transformed(*call):
                raise BackendError(f"{name}: must be called outside {TRANSFORMS}.")
            return function(*call)

        op = torch.library.custom_op(name, mutates_args=(), **options)(run)

        op.direct = function  # type: ignore[attr-defined]
        op.__doc__ = function.__doc__
        return op

    return decorate


def register_gradient(op: Any, keep: Any, differentiate: Any) -> None:
    """Give an operator its gradient: through the dispatcher, and as ``op.function`` without it.

    Only the first output has a gradient. ``keep`` and ``differentiate`` are what PyTorch's
    ``register_autograd`` calls ``setup_context`` and ``backward``.
    """
    op.register_autograd(differentiate, setup_context=keep)

    class Direct(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, *inputs: Any) -> Tensor:
            output: tuple[Tensor, ...] = op.direct(*inputs)
            keep(ctx, inputs, output)
            ctx.keeps_plain = True
            return output[0]

        backward = staticmethod(differentiate)

    op.function = Direct


def run(op: Any, inference: Any, *call: Any) -> Tensor:
    """First result of ``op`` if an input requires a gradient, else the result of ``inference``."""
    plain = is_plain(*call)
    result: Tensor
    if torch.is_grad_enabled() and any(isinstance(x, Tensor) and x.requires_grad for x in call):
        result = op.function.apply(*call) if plain else op(*call)[0]
    else:
        result = (inference.direct if plain else inference)(*call)
    return result


def run_backward(ctx: Any, op: Any, grad: Tensor, *saved: Any) -> Any:
    """The gradients that ``op`` computes; they may be differentiated again."""
    unknown = () if getattr(ctx, "keeps_plain", False) else saved
    last = not torch.is_grad_enabled() and is_plain(grad, *unknown)
    return (op.direct if last else op)(grad, *saved)


def is_plain(*call: Any) -> bool:
    """Whether a call may bypass PyTorch's dispatcher: no dispatch mode, transform or tracer is
    active, and every tensor is an ordinary tensor with values."""
    if torch.compiler.is_compiling() or torch._C._len_torch_dispatch_stack():
        return False
    if torch._ops._len_torch_dispatch_stack_pre_dispatch():
        return False
    for x in call:
        if not isinstance(x, Tensor):
            continue
        # Subclasses, batched tensors and tensors without values have none at their address.
        if type(x) not in _PLAIN or x.is_meta or not torch._C._has_storage(x):
            return False
        if x.is_neg() or x._is_zerotensor() or torch._is_functional_tensor(x):  # lazy ones neither
            return False
    return not (transformed(*call) or torch.jit.is_tracing())
