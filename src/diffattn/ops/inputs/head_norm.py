"""Per-head normalisation of the attention output."""

from torch import Tensor
from torch.nn import functional as F

from diffattn.errors import ShapeError
from diffattn.ops.inputs.masking import at_least_float32
from diffattn.ops.inputs.validation import checked_number, validate_floats


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
