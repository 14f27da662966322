"""Normalisation of one attention head's output."""

import torch
from torch import Tensor, nn

from diffattn.errors import ConfigError
from diffattn.ops.layer_parts import normalise_heads


class HeadNorm(nn.Module):
    r"""RMSNorm per head with a fixed factor.

    .. math:: \mathrm{head}_i = (1 - \lambda_\mathrm{init})\,\mathrm{LN}(\mathrm{DiffAttn}_i)

    The factor is part of the norm (Appendix G): a layer without head norm has no factor either.

    Source: arXiv:2410.05258v2, Eq. (3).

    Args:
        value_dim: Dv, channels of one head.
        affine: Learn a scale ``[Dv]``, shared by all heads, starting at 1.
        eps: Added to the mean square.
        factor: :math:`1 - \lambda_\mathrm{init}`; 1 for attention types without λ_init.
    """

    def __init__(
        self, value_dim: int, *, affine: bool = True, eps: float = 1e-5, factor: float = 1.0
    ) -> None:
        super().__init__()
        if eps <= 0:
            raise ConfigError(f"HeadNorm: eps must be above 0, got {eps}.")
        self.eps = eps
        self.factor = factor
        self.weight = nn.Parameter(torch.ones(value_dim)) if affine else None

    def forward(self, x: Tensor) -> Tensor:
        """``[B, T, H, Dv]`` to the same shape and dtype; computed in float32 or wider."""
        return normalise_heads(x, self.weight, self.eps, self.factor)

    def extra_repr(self) -> str:
        """Text in the parentheses of ``print(model)``."""
        return f"eps={self.eps}, factor={self.factor:.4f}"
