"""Checks and conversions of numbers that a caller passes. Needs no torch."""

import math
from numbers import Integral, Real
from typing import Any

LARGEST_COUNT = 2**31 - 1
"""Largest number of channels, heads, layers or tokens that a config may have: 32-bit integers."""
_SMALLEST, _LARGEST = 2.0**-126, (2 - 2.0**-23) * 2.0**127  # float32's normal numbers


def plain(value: Any) -> Any:
    """Numpy numbers and arrays as Python numbers and lists, also within a list, tuple or dict."""
    if type(value) in (list, tuple):
        return type(value)(map(plain, value))
    if type(value) is dict:
        return {name: plain(item) for name, item in value.items()}
    return value.tolist() if type(value).__module__ == "numpy" else value


def is_whole(value: object) -> bool:
    """Whether a value is an integer; booleans are not."""
    return isinstance(value, Integral) and not isinstance(value, bool)


def is_number(value: object) -> bool:
    """Whether a value is a finite real number; booleans are not."""
    if isinstance(value, Integral):
        return not isinstance(value, bool)
    return isinstance(value, Real) and math.isfinite(value)


def as_float(value: Any) -> Any:
    """Integers up to 2³¹ − 1 in size as floats, also within lists; a tuple becomes a list."""
    if isinstance(value, list | tuple):
        return [as_float(item) for item in value]
    return float(value) if is_whole(value) and abs(value) <= LARGEST_COUNT else value


def in_float32(value: float) -> bool:
    """Whether a number is 0 or within float32's normal range, in which models compute."""
    return value == 0 or _SMALLEST <= abs(value) <= _LARGEST
