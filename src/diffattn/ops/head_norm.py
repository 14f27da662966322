"""Per-head normalisation of the attention output."""

import torch
from torch import Tensor
from torch.nn import functional as F


def head_norm(
    x: Tensor, weight: Tensor | None = None, *, eps: float = 1e-5, factor: float = 1.0
) -> Tensor:
    r"""RMSNorm over the channels of one head of one token, times a fixed factor.

    .. math:: \mathrm{head}_i = (1 - \lambda_\mathrm{init})\,\mathrm{LN}(\mathrm{DiffAttn}_i)

    The paper calls it GroupNorm; it never looks across tokens or heads, so nothing leaks from
    the future. The factor is the constant :math:`1 - \lambda_\mathrm{init}`, not
    :math:`1 - \lambda`.

    Source: arXiv:2410.05258v2, Eq. (3).

    Args:
        x: ``[B, T, H, Dv]``, any floating dtype. Computed in float32 (float64 stays float64).
        weight: Learned scale ``[Dv]``, shared by all heads, or ``None``.
        eps: Added to the mean square, in squared units of ``x``.
        factor: :math:`1 - \lambda_\mathrm{init}` for DIFF V1 and Shared DIFF, else 1.

    Returns:
        ``[B, T, H, Dv]``, dtype of ``x``.
    """
    wide = x if x.dtype == torch.float64 else x.float()
    normed = F.rms_norm(
        wide, (x.shape[-1],), None if weight is None else weight.to(wide.dtype), eps
    )
    return (factor * normed).to(x.dtype)
