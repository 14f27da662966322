"""The Hopper kernels as operators of PyTorch, with the Hopper or the Triton backward pass."""

import os
from typing import Any

from torch import Tensor

from diffattn.ops.backends import custom_op
from diffattn.ops.inputs.kernel_support import BY_MAP
from diffattn.ops.inputs.masking import CAUSAL, AttentionMask
from diffattn.ops.inputs.operators import run


def diff_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    lam: Tensor,
    *,
    scale: float,
    mask: AttentionMask = CAUSAL,
    own_backward: bool = True,
) -> Tensor:
    r"""Differential attention on Hopper: one warpgroup per map, each tile of V shared.

    Arguments and result as in :func:`diffattn.ops.backends.reference.forward`, not empty and
    of the dtypes and widths in the backend's row; scale above 0, no mask besides ``causal``.
    ``own_backward`` selects the Hopper backward pass, else the Triton kernels'.

    Source: arXiv:2410.05258v2, Eq. (1).
    """
    call = (q, k, v, lam, scale, mask.causal, own_backward)
    return run(_forward, _forward_inference, *call)


def _launch_forward(*call: Any, inference: bool) -> tuple[Tensor, Tensor, Tensor]:
    from diffattn.ops.hopper import by_map, forward

    *tensors, scale, causal, _ = call
    form = by_map if os.environ.get(BY_MAP) == "1" else forward
    return form.forward(*tensors, scale=scale, causal=causal, inference=inference)


def _launch_backward(*call: Any) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    from diffattn.ops.hopper import backward

    *tensors, scale, causal = call
    return backward.backward(*tensors, scale=scale, causal=causal)


def _backward_of(scale: float, causal: bool, own_backward: bool) -> tuple[Any, tuple[Any, ...]]:
    if own_backward:
        return diff_attention_backward, (scale, causal)
    return custom_op.diff_attention_backward, (scale, causal, None, None, None, None)


diff_attention_backward = custom_op.register_backward(
    "hopper_diff_attention_backward", "float scale, bool causal", _launch_backward
)
_forward, _forward_inference = custom_op.register_kernel(
    "hopper_diff_attention",
    "float scale, bool causal, bool own_backward",
    _launch_forward,
    _backward_of,
)
