"""Operators registered with PyTorch, and the derivatives and transforms that they cannot take."""

import functools
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.autograd import forward_ad

from diffattn.errors import BackendError

TRANSFORMS = "torch.func transforms (vmap, grad, jvp) and forward-mode derivatives"


def transformed(*tensors: Any) -> bool:
    """Whether ``torch.func`` transforms a call, or a tensor carries a forward-mode derivative."""
    # PyTorch has no public questions for either.
    if torch._C._are_functorch_transforms_active():
        return True
    if forward_ad._current_level < 0:
        return False
    return torch.compiler.is_compiling() or any(
        forward_ad.unpack_dual(x).tangent is not None for x in tensors if isinstance(x, Tensor)
    )


def registered(name: str, **options: Any) -> Callable[[Callable[..., Any]], Any]:
    """``torch.library.custom_op`` of an operator that changes none of its arguments.

    PyTorch would drop a forward-mode derivative without a word: the operator refuses it. Under
    ``vmap``, as of a gradient of many outputs at once, it runs once per element.
    """

    def decorate(function: Callable[..., Any]) -> Any:
        @functools.wraps(function)
        def run(*call: Any) -> Any:
            if transformed(*call):
                raise BackendError(f"{name}: must be called outside {TRANSFORMS}.")
            return function(*call)

        op = torch.library.custom_op(name, mutates_args=(), **options)(run)

        def one_by_one(info: Any, in_dims: tuple[int | None, ...], *call: Any) -> Any:
            results = [
                op(*(x if dim is None else x.select(dim, index)
                     for x, dim in zip(call, in_dims, strict=True)))
                for index in range(info.batch_size)
            ]  # fmt: skip
            if isinstance(results[0], Tensor):
                return torch.stack(results), 0
            stacked = tuple(torch.stack(parts) for parts in zip(*results, strict=True))
            return stacked, (0,) * len(stacked)

        op.register_vmap(one_by_one)
        return op

    return decorate
