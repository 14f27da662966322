"""Repairs of Triton's interpreter, in which kernels run on CPU tensors.

It holds bfloat16 as the 16 bits of each number and multiplies, adds and compares those bits as
integers; its casts to bfloat16 cut digits off where a GPU rounds (triton issues 10919 and 11584).
Loads, stores, selections and changes of shape move whole numbers and are right. Sums over an axis
are not repaired: like every kernel here, cast to float32 first.
"""

from collections.abc import Callable
from typing import Any

import triton
import triton.language as tl

_COMPUTING = {"binary_op": 0, "unary_op": 0, "create_fma": 2, "create_dot": 2}
"""Methods of the builder that compute with numbers; the result has the dtype of this argument."""


def repair() -> None:
    """Compute in bfloat16 as a GPU does; let triton 3.6 loop to a bound known at run time."""
    from triton.runtime import interpreter

    builder = interpreter.InterpreterBuilder
    for name, position in _COMPUTING.items():
        setattr(builder, name, _in_float32(getattr(builder, name), position))
    builder.cast_impl = _rounding_cast(builder.cast_impl)
    if triton.__version__.startswith("3.6."):
        _let_interpreter_loop()


def to_float32(bits: Any) -> Any:
    """The float32 numbers of bfloat16 ones, which are given as a numpy array of uint16."""
    return (bits.astype("uint32") << 16).view("float32")


def to_bfloat16(x: Any) -> Any:
    """The nearest bfloat16 numbers of a numpy array of float32 as uint16, of two the even one."""
    bits = x.view("uint32")
    rounded = (bits + (0x7FFF + ((bits >> 16) & 1))) >> 16
    is_nan = x != x
    return (rounded * ~is_nan + 0x7FC0 * is_nan).astype("uint16")


def _in_float32(compute: Callable[..., Any], position: int) -> Callable[..., Any]:
    """``compute`` on the numbers in place of their bits, rounded if its result is bfloat16."""
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
    """``cast`` between float32 and bfloat16 to the nearest number; any other as it was."""
    from triton.runtime.interpreter import TensorHandle

    def rounding_cast(self: Any, src: Any, dst_type: Any) -> Any:
        types = (src.dtype.scalar, dst_type.scalar)
        if types == (tl.float32, tl.bfloat16):
            return TensorHandle(to_bfloat16(src.data), tl.bfloat16)
        if types == (tl.bfloat16, tl.float32):
            return TensorHandle(to_float32(src.data), tl.float32)
        return cast(self, src, dst_type)

    return rounding_cast


def _let_interpreter_loop() -> None:
    """Run-time loop bounds in the interpreter of triton 3.6 on numpy 2.4 and later.

    Both call a one-element array a number, but numpy no longer converts it (triton issue 9171,
    fixed in triton 3.7, whose patch this is).
    """
    # TODO: goes with triton 3.6.
    from triton.runtime import interpreter

    patch_tensor = interpreter._patch_lang_tensor

    def patch_tensor_and_index(tensor: Any, scope: Any) -> None:
        patch_tensor(tensor, scope)
        scope.set_attr(tensor, "__index__", lambda self: int(self.handle.data.item()))

    interpreter._patch_lang_tensor = patch_tensor_and_index
