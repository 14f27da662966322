"""Repairs of Triton's interpreter, in which kernels run on CPU tensors.

The interpreter stores bfloat16 as 16-bit integers, and multiplies, adds and compares these
integers. Its casts to bfloat16 cut digits off where a GPU rounds (triton issues 10919 and 11584).
Loads, stores, selections and changes of shape are correct. Sums over an axis are not repaired:
kernels must cast to float32 first, as all kernels here do.
"""

from collections.abc import Callable
from typing import Any

import triton
import triton.language as tl

_COMPUTING = {"binary_op": 0, "unary_op": 0, "create_fma": 2, "create_dot": 2}
"""Methods of the builder that compute -> index of the argument with the result's dtype."""


def repair() -> None:
    """Compute in bfloat16 as a GPU does; let triton 3.6 loop to a bound known at run time."""
    from triton.runtime import interpreter

    builder = interpreter.InterpreterBuilder
    for name, position in _COMPUTING.items():
        setattr(builder, name, _in_float32(getattr(builder, name), position))
    builder.cast_impl = _rounding_cast(builder.cast_impl)
    # TODO: remove with triton 3.6. It uses a one-element array as an integer, which numpy 2.4 no
    # longer converts (triton issue 9171). This is the patch of triton 3.7.
    if triton.__version__.startswith("3.6."):
        patch_tensor = interpreter._patch_lang_tensor

        def patch_tensor_and_index(tensor: Any, scope: Any) -> None:
            patch_tensor(tensor, scope)
            scope.set_attr(tensor, "__index__", lambda self: int(self.handle.data.item()))

        interpreter._patch_lang_tensor = patch_tensor_and_index


def to_float32(bits: Any) -> Any:
    """Convert bfloat16 numbers, a numpy array of their bits as uint16, to float32."""
    return (bits.astype("uint32") << 16).view("float32")


def to_bfloat16(x: Any) -> Any:
    """Bits (uint16) of the nearest bfloat16 to each float32 of a numpy array; ties to even."""
    bits = x.view("uint32")
    rounded = (bits + (0x7FFF + ((bits >> 16) & 1))) >> 16
    is_nan = x != x
    return (rounded * ~is_nan + 0x7FC0 * is_nan).astype("uint16")


def _in_float32(compute: Callable[..., Any], position: int) -> Callable[..., Any]:
    """Wrap ``compute`` to run in float32 and round its result if that is bfloat16."""
    from triton.runtime.interpreter import TensorHandle

    def decoded(x: Any) -> Any:
        if isinstance(x, TensorHandle) and x.dtype.scalar == tl.bfloat16:
            return TensorHandle(to_float32(x.data), tl.float32)
        return x

    def compute_in_float32(self: Any, *args: Any) -> Any:
        result = compute(self, *map(decoded, args))
        is_rounded = args[position].dtype.scalar == tl.bfloat16
        if is_rounded and result.data.dtype == "float32":  # a comparison gives bool
            return TensorHandle(to_bfloat16(result.data), tl.bfloat16)
        return result

    return compute_in_float32


def _rounding_cast(cast: Callable[..., Any]) -> Callable[..., Any]:
    """Wrap ``cast`` to round correctly between float32 and bfloat16; other casts do not change."""
    from triton.runtime.interpreter import TensorHandle

    def rounding_cast(self: Any, src: Any, dst_type: Any) -> Any:
        types = (src.dtype.scalar, dst_type.scalar)
        if types == (tl.float32, tl.bfloat16):
            return TensorHandle(to_bfloat16(src.data), tl.bfloat16)
        if types == (tl.bfloat16, tl.float32):
            return TensorHandle(to_float32(src.data), tl.float32)
        return cast(self, src, dst_type)

    return rounding_cast
