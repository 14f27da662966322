"""The formulas of a layer around its attention: λ, head norm and rotary positions."""

import math

import torch
from torch import Tensor
from torch.nn import functional as F

from diffattn.errors import ConfigError, ShapeError, shown
from diffattn.ops.inputs.masking import at_least_float32
from diffattn.ops.inputs.numbers import LARGEST_COUNT, is_whole, plain
from diffattn.ops.inputs.validation import checked_number, validate_floats, validate_tensor


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
    if not is_whole(layer_idx) or not 0 <= layer_idx <= LARGEST_COUNT:
        raise ConfigError(
            f"lambda_init: layer_idx must be an integer from 0 to {LARGEST_COUNT}, "
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
    r"""λ of DIFF V2: one value per token and head, from 0 to 1.

    .. math:: \lambda = \sigma(X W_\lambda)

    Source: DIFF V2 note (January 2026), λ projection.

    Args:
        logits: ``[B, T, H]``, floats of 16 bits or more.

    Returns:
        ``[B, T, H]``, float32 (float64 for float64 logits).
    """
    validate_floats("sigmoid_lambda", "logits", logits)
    return torch.sigmoid(at_least_float32(logits))


def head_norm(
    x: Tensor, weight: Tensor | None = None, *, eps: float = 1e-5, factor: float = 1.0
) -> Tensor:
    r"""RMSNorm over the channels of one head of one token, times a fixed factor.

    .. math:: \mathrm{head}_i = (1 - \lambda_\mathrm{init})\,\mathrm{LN}(\mathrm{DiffAttn}_i)

    The paper calls it GroupNorm. It never mixes tokens or heads, so it is causal. The factor is
    the constant :math:`1 - \lambda_\mathrm{init}`, not :math:`1 - \lambda`.

    Source: arXiv:2410.05258v2, Eq. (3).

    Args:
        x: ``[..., Dv]``, floats of 16 bits or more. The result has its shape and dtype, and is
            computed in float32 (float64 stays float64).
        weight: Learned scale ``[Dv]``, shared by all heads, or ``None``.
        eps: Added to the mean square, in squared units of ``x``.
        factor: :math:`1 - \lambda_\mathrm{init}` for DIFF V1 and Shared DIFF, else 1.
    """
    where = "head_norm"
    validate_floats(where, "x", x)
    if x.ndim == 0:
        raise ShapeError(f"{where}: x must be [..., Dv], got a scalar.")
    if weight is not None:
        validate_floats(where, "weight", weight)
        if weight.shape != x.shape[-1:] or weight.device != x.device:
            raise ShapeError(
                f"{where}: weight must be [Dv = {x.shape[-1]}] on {x.device}, "
                f"got {list(weight.shape)} on {weight.device}."
            )
    eps = checked_number(where, "eps", eps, least=0.0)
    factor = checked_number(where, "factor", factor)
    wide = at_least_float32(x)
    weight = None if weight is None else weight.to(wide.dtype)
    return (factor * F.rms_norm(wide, x.shape[-1:], weight, eps)).to(x.dtype)


_MAX_WIDTH = 2**20
_FLOAT32 = torch.finfo(torch.float32)


def rotary_embedding(
    positions: Tensor, head_dim: int, *, theta: float = 10_000.0
) -> tuple[Tensor, Tensor]:
    r"""Cosine and sine tables for :func:`apply_rotary`.

    .. math:: \omega_c = \theta^{-2c/D},\quad (\cos p\,\omega_c,\ \sin p\,\omega_c)

    Source: arXiv:2104.09864, section 3.2.2, with channels c and c + D/2 paired.

    Args:
        positions: ``[T]`` or ``[B, T]``, integer, in tokens.
        head_dim: D, even.
        theta: Base of the wavelengths, dimensionless.

    Returns:
        cos and sin, each ``[T, D]`` or ``[B, T, D]``, float32.
    """
    where = "rotary_embedding"
    validate_tensor(where, "positions", positions)
    whole = not (positions.is_floating_point() or positions.is_complex())
    if positions.ndim not in (1, 2) or not whole or positions.dtype == torch.bool:
        raise ShapeError(
            f"{where}: positions must be integers [T] or [B, T], "
            f"got {positions.dtype} {list(positions.shape)}."
        )
    head_dim = plain(head_dim)
    if not is_whole(head_dim) or head_dim % 2 or not 2 <= head_dim <= _MAX_WIDTH:
        raise ShapeError(
            f"{where}: head_dim must be an even integer from 2 to {_MAX_WIDTH}, "
            f"got {shown(head_dim)}."
        )
    theta = checked_number(where, "theta", theta, least=_FLOAT32.tiny, most=_FLOAT32.max)
    channel = torch.arange(0, head_dim, 2, dtype=torch.float32, device=positions.device)
    frequency = theta ** (-channel / head_dim)  # [D / 2]
    angle = positions[..., None].float() * frequency
    angle = torch.cat((angle, angle), dim=-1)  # [..., T, D]
    return angle.cos(), angle.sin()


def apply_rotary(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Rotate queries or keys by their position; both maps share one position.

    Source: arXiv:2104.09864, section 3.4.2, in the rotated-halves layout.

    Args:
        x: ``[B, T, ..., D]``, floats of 16 bits or more, any number of head axes.
        cos, sin: ``[T, D]`` or ``[B or 1, T, D]``.

    Returns:
        Shape and dtype of ``x``, also where the tables are wider, as under autocast.
    """
    check_tables(x, cos, sin)
    lead = cos.shape[:-2] or (1,)
    heads = (1,) * (x.ndim - 3)
    cos = cos.reshape(*lead, cos.shape[-2], *heads, cos.shape[-1])
    sin = sin.reshape(cos.shape)
    first, second = x.chunk(2, dim=-1)
    return (x * cos + torch.cat((-second, first), dim=-1) * sin).to(x.dtype)


def check_tables(x: Tensor, cos: Tensor, sin: Tensor) -> None:
    """Raise :class:`ShapeError` unless the tables fit ``x``."""
    for name, tensor in (("x", x), ("cos", cos), ("sin", sin)):
        validate_floats("apply_rotary", name, tensor)
        if tensor.device != x.device:
            raise ShapeError(
                f"apply_rotary: {name} must be on {x.device} like x, got {tensor.device}."
            )
    if x.ndim < 3 or x.shape[-1] % 2:
        raise ShapeError(f"apply_rotary: x must be [B, T, ..., D], D even, got {list(x.shape)}.")
    batch, num_tokens, head_dim = x.shape[0], x.shape[1], x.shape[-1]
    lead = cos.shape[:-2] or (1,)
    fits = cos.shape == sin.shape and cos.shape[-2:] == (num_tokens, head_dim)
    if not fits or lead not in ((1,), (batch,)):
        raise ShapeError(
            f"apply_rotary: cos and sin must be [T, D] or [B or 1, T, D] with B = {batch}, "
            f"T = {num_tokens} and D = {head_dim}, got {list(cos.shape)} and {list(sin.shape)}."
        )
