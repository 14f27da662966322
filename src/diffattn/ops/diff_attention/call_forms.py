"""Calls that differ from a checked one in the values of their tensors alone.

Most calls of a program do, layer after layer: their shapes, dtypes, devices and options need no
second look, which takes Python longer than the rest of the call.
"""

from typing import Any

import torch
from torch import Tensor

_PLAIN = (Tensor, torch.nn.Parameter)
_NUMBERS = (float, int, bool, type(None))
_MOST = 4096
"""Forms that are remembered: with every token a cache is longer, and its form a new one."""


def call_form(*arguments: Any) -> tuple[Any, ...] | None:
    """Everything about a call but the values of its tensors, as a key of a dictionary.

    Args:
        *arguments: Tensors, numbers and ``None``, always in the same order.

    Returns:
        Kinds, shapes, dtypes, devices and layouts of tensors, types and values of the others;
        ``None`` if an argument is of another kind, or its shape may be more than numbers.
    """
    if torch.compiler.is_compiling():
        return None
    form: list[Any] = []
    for x in arguments:
        kind = type(x)
        if kind in _PLAIN:
            if x.is_nested:
                return None
            form += (x.shape, x.dtype, x.device, x.layout)
        elif kind in _NUMBERS:
            form += (kind, x)  # True, 1 and 1.0 are one key
        else:
            return None
    return tuple(form)


def remember(checked: dict[tuple[Any, ...], float], form: tuple[Any, ...], scale: float) -> None:
    """Note that a call of this form, not an empty one, has passed its checks, and its scale.

    Args:
        checked: Of one operator.
        form: What :func:`call_form` gave.
        scale: The one in force.
    """
    if len(checked) >= _MOST:
        checked.clear()
    checked[form] = scale
