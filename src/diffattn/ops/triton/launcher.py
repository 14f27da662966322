"""Launch kernels through a cache of their compiled forms, without Triton's argument binder.

``kernel[grid](...)`` examines some 40 arguments in every call. In a small call this takes more time
on the host than everything else. Here the compiled form is looked up by the same properties.
"""

from collections.abc import Sequence
from typing import Any

import triton
from torch import Tensor

_INT32 = 2**31 - 1
_MOST_CALLS = 4_096
_FORMS: dict[tuple[Any, ...], tuple[Any, list[Any]]] = {}
"""Properties of arguments for which Triton compiles -> compiled kernel, and its constants."""
_CALLS: dict[tuple[Any, ...], tuple[Any, list[Any]]] = {}
"""Arguments themselves -> the same values: a faster look-up. Cleared when it is full."""


def run_kernel(
    kernel: Any,
    grid: tuple[int, int, int],
    tensors: Sequence[Tensor | None],
    numbers: Sequence[float],
    **constants: Any,
) -> None:
    """``kernel[grid](*tensors, *numbers, **constants)``, whose parameters stand in this order.

    A missing tensor is ``None``. Numbers are floats and integers from 0 on. Constants include
    compiler options; all calls of a kernel must pass the same names in the same order.
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
            if hasattr(compiled, "__getitem__"):  # with Triton's hooks it may be another object
                _FORMS[kind] = compiled, [constants[name] for name in names]
            return
        if len(_CALLS) >= _MOST_CALLS:
            _CALLS.clear()
        form = _CALLS[call] = _FORMS[kind]
    compiled, last = form
    compiled[grid](*tensors, *numbers, *last)


def _specialization(x: float) -> Any:
    """Property of a number for which Triton compiles: 1, a multiple of 16, or 64 bits; or float."""
    if isinstance(x, float):
        return float
    return x if x == 1 else (x % 16 == 0, x > _INT32)
