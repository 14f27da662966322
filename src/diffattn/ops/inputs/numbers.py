"""Numbers that a caller passes: which count as whole, and as finite. Needs no torch."""

import math
from numbers import Integral, Real
from typing import Any

LARGEST_COUNT = 2**31 - 1
"""Of channels, heads, layers, tokens of a vocabulary or a context: libraries count in 32 bits."""
_SMALLEST, _LARGEST = 2.0**-126, (2 - 2.0**-23) * 2.0**127  # float32's normal numbers


def plain(value: Any) -> Any:
    """A number or an array of numpy as Python's, also within a list, tuple or dict."""
    if type(value) in (list, tuple):
        return type(value)(map(plain, value))
    if type(value) is dict:
        return {name: plain(item) for name, item in value.items()}
    return value.tolist() if type(value).__module__ == "numpy" else value


def is_whole(value: object) -> bool:
    """Whether a value is a whole number: ``True`` is none, though Python counts it as 1."""
    return isinstance(value, Integral) and not isinstance(value, bool)


def is_number(value: object) -> bool:
    """Whether a value is a finite number, whole or not."""
    if isinstance(value, Integral):
        return not isinstance(value, bool)
    return isinstance(value, Real) and math.isfinite(value)


def as_float(value: Any) -> Any:
    """A whole number as a float, also within a list, or a tuple, which becomes one."""
    if isinstance(value, list | tuple):
        return [as_float(item) for item in value]
    return float(value) if is_whole(value) and abs(value) <= LARGEST_COUNT else value


def in_float32(value: float) -> bool:
    """Whether float32, in which models compute, has the number: 0 or one of its normal size."""
    return value == 0 or _SMALLEST <= abs(value) <= _LARGEST
