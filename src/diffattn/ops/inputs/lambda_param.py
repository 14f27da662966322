"""Formulas of λ, the weight of the subtracted map: its initial value, V1's form and V2's form."""

import math

import torch
from torch import Tensor

from diffattn.errors import ConfigError, ShapeError, shown
from diffattn.ops.inputs.masking import at_least_float32
from diffattn.ops.inputs.numbers import is_whole, plain
from diffattn.ops.inputs.validation import checked_number, validate_floats

_MAX_LAYER = 2**31 - 1


def lambda_init(layer_idx: int) -> float:
    r"""Depth schedule of the constant part of λ.

    .. math:: \lambda_\mathrm{init} = 0.8 - 0.6\,e^{-0.3 (l - 1)},\quad l = \mathrm{layer\_idx} + 1

    The 0-based ``layer_idx`` is converted to the paper's 1-based l here and nowhere else.

    Source: arXiv:2410.05258v2, after Eq. (2).

    Args:
        layer_idx: Global index of the layer, counted from 0 (under pipeline parallelism too).

    Returns:
        0.2 for the first layer, 0.3555 for the second, tending to 0.8; dimensionless.
    """
    layer_idx = plain(layer_idx)
    if not is_whole(layer_idx) or not 0 <= layer_idx <= _MAX_LAYER:
        raise ConfigError(
            f"lambda_init: layer_idx must be an integer from 0 to {_MAX_LAYER}, "
            f"got {shown(layer_idx)}."
        )
    depth = layer_idx + 1
    return 0.8 - 0.6 * math.exp(-0.3 * (depth - 1))


def diff_lambda(
    lambda_q1: Tensor, lambda_k1: Tensor, lambda_q2: Tensor, lambda_k2: Tensor, lambda_init: float
) -> Tensor:
    r"""λ of one layer from its four learned vectors, always in float32 or wider.

    .. math:: \lambda = e^{\lambda_{q1} \cdot \lambda_{k1}} - e^{\lambda_{q2} \cdot \lambda_{k2}}
              + \lambda_\mathrm{init}

    It may be negative or above 1; nothing clamps it.

    Source: arXiv:2410.05258v2, Eq. (2).

    Args:
        lambda_q1, lambda_k1, lambda_q2, lambda_k2: ``[D]`` each, floats of 16 bits or more.
        lambda_init: Constant part, dimensionless; see :func:`lambda_init`.

    Returns:
        Scalar tensor ``[]``, float32 (float64 for float64 vectors).
    """
    names = ("lambda_q1", "lambda_k1", "lambda_q2", "lambda_k2")
    vectors = (lambda_q1, lambda_k1, lambda_q2, lambda_k2)
    for name, x in zip(names, vectors, strict=True):
        validate_floats("diff_lambda", name, x)
        if x.ndim != 1 or x.shape != lambda_q1.shape or x.device != lambda_q1.device:
            raise ShapeError(
                f"diff_lambda: {name} must be [D] and on one device like lambda_q1, "
                f"got {list(x.shape)} on {x.device}."
            )
    lambda_init = checked_number("diff_lambda", "lambda_init", lambda_init)
    # mul and sum rather than matmul, which autocast runs in bfloat16.
    q1, k1, q2, k2 = map(at_least_float32, vectors)
    return (q1 * k1).sum().exp() - (q2 * k2).sum().exp() + lambda_init


def sigmoid_lambda(logits: Tensor) -> Tensor:
    r"""λ of DIFF V2: one value per token and head, strictly between 0 and 1.

    .. math:: \lambda = \sigma(X W_\lambda)

    Source: DIFF V2 note (January 2026), λ projection.

    Args:
        logits: ``[B, T, H]``, floats of 16 bits or more.

    Returns:
        ``[B, T, H]``, float32 (float64 for float64 logits).
    """
    validate_floats("sigmoid_lambda", "logits", logits)
    return torch.sigmoid(at_least_float32(logits))
