"""Rotary position embedding in the rotated-halves layout."""

import torch
from torch import Tensor

from diffattn.errors import ShapeError, shown
from diffattn.ops.inputs.numbers import is_whole, plain
from diffattn.ops.inputs.validation import checked_number, validate_floats, validate_tensor

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
