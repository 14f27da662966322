"""Steps of every kernel launch: masks as intervals, strides, widths, blocks, a cache of kernels."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
import triton
from torch import Tensor
from torch.nn.functional import pad

from diffattn.ops.inputs.masking import AttentionMask, query_ranges
from diffattn.ops.triton import interpreter
from diffattn.ops.triton.configs import interpreted, num_multiprocessors

LOG2_E = 1.4426950408889634
"""log2(e): exp(x) = exp2(x · log2 e), and GPUs have an instruction only for exp2."""


@dataclass(frozen=True, kw_only=True, slots=True)
class KeyMask:
    """Which keys a query sees, in the form that the kernels read."""

    causal: bool
    """Whether the kernel hides keys above the diagonal itself; False if intervals are given."""
    first: Tensor | None = None
    """int32 ``[B or 1, T]``: query i sees keys ``first <= j < last``. ``None``: no intervals."""
    last: Tensor | None = None
    begin: Tensor | None = None
    """int32 ``[B or 1, S]``: only queries ``begin <= i < end`` may see key j; for gradients."""
    end: Tensor | None = None
    padding: Tensor | None = None
    """uint8 ``[B, S]``, 0 where a key is padding. Intervals are given too, and end at real keys."""
    before: Tensor | None = None
    """int32 ``[B, S + 1]``, number of real keys before a key, to find runs without padding."""

    @property
    def flags(self) -> dict[str, bool]:
        """The compile-time switches of every kernel."""
        return {
            "CAUSAL": self.causal,
            "RANGES": self.first is not None,
            "PADDING": self.padding is not None,
        }


def key_mask(q: Tensor, k: Tensor, mask: AttentionMask, *, gradient: bool = False) -> KeyMask:
    """Turn the options of ``diff_attention`` into what the kernels read; ``gradient``: with the
    queries that see a key, for the backward kernels."""
    if mask.at_most_causal:
        return KeyMask(causal=mask.causal)
    num_queries, num_keys = q.shape[1], k.shape[1]
    first, last = mask.key_ranges(num_queries, num_keys, device=q.device)
    padding = before = None
    if mask.key_padding_mask is not None:
        padding = mask.key_padding_mask.contiguous().view(torch.uint8)
        before = pad(padding.cumsum(1, dtype=torch.int32), (1, 0))  # [B, S + 1]
        # Computed on the device, without waiting. Padding at both ends shortens the intervals, so
        # full tiles need no mask; padding in between is read tile by tile.
        first_real = (before[:, 1:] == 0).sum(1, keepdim=True, dtype=torch.int32)
        num_until_last = (before < before[:, -1:]).sum(1, keepdim=True, dtype=torch.int32)
        first, last = torch.maximum(first, first_real), torch.minimum(last, num_until_last)
    begin = end = None
    if gradient:
        begin, end = query_ranges(first, last, num_keys)
    return KeyMask(
        causal=False, first=first, last=last, begin=begin, end=end, padding=padding, before=before
    )


def dense_rows(x: Tensor) -> Tensor:
    """``x``, or a copy, with stride 1 along the last axis: the only stride that kernels assume."""
    return x if x.stride(-1) == 1 else x.contiguous()


def strides_of(q: Tensor, k: Tensor, v: Tensor, lam: Tensor | None) -> tuple[int, ...]:
    """Strides of the axes before the channels, in the kernels' order; 0 for a missing axis."""
    of_maps = k.stride(3) if k.ndim == 5 else 0
    of_lambda = (0, 0, 0) if lam is None else lam.stride()
    return (*q.stride()[:4], *k.stride()[:3], of_maps, *v.stride()[:3], *of_lambda)


def num_blocks(length: int, block: int) -> int:
    """Number of blocks for ``length`` rows; ``triton.cdiv`` takes the host 20 times as long."""
    return -(-length // block)


def block_width(width: int) -> int:
    """Smallest power of two for ``width`` channels, at least 16, as matrix products need."""
    return max(16, 1 << (width - 1).bit_length())


def group_splits(group: int, num_programs: int, device: torch.device) -> int:
    """Number of parts into which the query heads of a key/value head are split for dK and dV.

    With few key/value heads and few keys, a program per block of keys leaves a GPU partly idle. The
    number is the smallest that gives every multiprocessor a program: a divisor of ``group``, the
    query heads per key/value head. ``num_programs`` is that of a launch without a split.
    """
    wanted = num_multiprocessors(device)
    divisors = (n for n in range(1, group) if group % n == 0)
    return next((n for n in divisors if n * num_programs >= wanted), group)


def widths(head_dim: int, value_dim: int) -> dict[str, int]:
    """Widths of queries, values and their tiles, as compile-time constants."""
    return {
        "HEAD_DIM": head_dim,
        "VALUE_DIM": value_dim,
        "BLOCK_D": block_width(head_dim),
        "BLOCK_DV": block_width(value_dim),
    }


def batch_stride(x: Tensor | None) -> int:
    """Stride between batch rows of an interval's ends; 0 if all rows share them."""
    return 0 if x is None or x.shape[0] == 1 else x.stride(0)


if interpreted():
    interpreter.repair()


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
