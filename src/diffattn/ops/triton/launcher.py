"""Launches that find the compiled form of a kernel without Triton's binder.

``kernel[grid](...)`` describes some 40 arguments anew in every call, which takes the host longer
than all else that a small call does. Here the form is looked up by the same facts.
"""

from collections.abc import Sequence
from typing import Any

import triton
from torch import Tensor

_INT32 = 2**31 - 1
_MOST_CALLS = 4_096
_FORMS: dict[tuple[Any, ...], tuple[Any, list[Any]]] = {}
"""A compiled kernel and its constants in order, by what Triton compiles a form of its own for."""
_CALLS: dict[tuple[Any, ...], tuple[Any, list[Any]]] = {}
"""The same by the numbers themselves, which is found sooner; forgotten when it is full."""


def run_kernel(
    kernel: Any,
    grid: tuple[int, int, int],
    tensors: Sequence[Tensor | None],
    numbers: Sequence[float],
    **constants: Any,
) -> None:
    """``kernel[grid](*tensors, *numbers, **constants)``.

    Args:
        kernel: Of ``triton.jit``. Its parameters are tensors, numbers and constants, in this order.
        grid: Programs along each axis.
        tensors: A missing one is ``None``.
        numbers: Integers from 0 on, and floats.
        **constants: The compile-time constants, and options of the compiler. Every call of a
            kernel gives the same names in the same order.
    """
    if triton.knobs.runtime.interpret:
        kernel[grid](*tensors, *numbers, **constants)
        return
    facts = [
        None if x is None else x.dtype if x.data_ptr() % 16 == 0 else str(x.dtype) for x in tensors
    ]
    knobs = (triton.knobs.runtime.debug, triton.knobs.compilation.instrumentation_mode)
    device = triton.runtime.driver.active.get_current_device()
    place = (device, id(kernel), *knobs, *constants.values())
    call = (*place, *facts, *numbers)
    form = _CALLS.get(call)
    if form is None:
        kind = (*place, *facts, *map(_specialization, numbers))
        if kind not in _FORMS:
            compiled = kernel[grid](*tensors, *numbers, **constants)
            names = kernel.arg_names[len(tensors) + len(numbers) :]
            if hasattr(compiled, "__getitem__"):  # hooks of Triton may give something else
                _FORMS[kind] = compiled, [constants[name] for name in names]
            return
        if len(_CALLS) >= _MOST_CALLS:
            _CALLS.clear()
        form = _CALLS[call] = _FORMS[kind]
    compiled, last = form
    compiled[grid](*tensors, *numbers, *last)


def _specialization(x: float) -> Any:
    """What Triton compiles a form of its own for: 1, multiples of 16, and 64 bits."""
    if isinstance(x, float):
        return float
    return x if x == 1 else (x % 16 == 0, x > _INT32)
