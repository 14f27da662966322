"""Calls that differ from a checked one in the values of their tensors alone.

Most calls of a program do, layer after layer: their shapes, dtypes, devices and options need no
second look, which takes Python longer than the rest of the call.
"""

from typing import Any, NamedTuple

import torch
from torch import Tensor

from diffattn.ops.inputs.backends import Inputs

_PLAIN = (Tensor, torch.nn.Parameter)
_NUMBERS = (float, int, bool, type(None))
_MOST = 4096
"""Forms that are remembered: with every token a cache is longer, and its form a new one."""


class Known(NamedTuple):
    """What a form says of every call that has it."""

    scale: float
    """The one in force."""
    inputs: Inputs
    """What a backend is chosen by."""


def call_form(*arguments: Any) -> tuple[Any, ...] | None:
    """Everything about a call but the values of its tensors, as a key of a dictionary.

    Args:
        *arguments: Tensors, numbers and ``None``, always in the same order.

    Returns:
        Whether gradients are on; kinds, shapes, dtypes, devices and layouts of tensors and whether
        they want a gradient, types and values of the others. ``None`` if an argument is of another
        kind, or its shape may be more than numbers.
    """
    if torch.compiler.is_compiling():
        return None
    form: list[Any] = [torch.is_grad_enabled()]
    for x in arguments:
        kind = type(x)
        if kind in _PLAIN:
            if x.is_nested:
                return None
            form += (x.shape, x.dtype, x.device, x.layout, x.requires_grad)
        elif kind in _NUMBERS:
            form += (kind, x)  # True, 1 and 1.0 are one key
        else:
            return None
    return tuple(form)


def remember(checked: dict[tuple[Any, ...], Known], form: tuple[Any, ...], known: Known) -> None:
    """Note that a call of this form, not an empty one, has passed its checks.

    Args:
        checked: Of one operator.
        form: What :func:`call_form` gave.
        known: What the next call need not find out.
    """
    if len(checked) >= _MOST:
        checked.clear()
    checked[form] = known
