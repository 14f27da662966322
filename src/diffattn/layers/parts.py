"""Modules inside a layer or block: head norm, the vectors of λ, feed-forward network."""

from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from diffattn.errors import ConfigError
from diffattn.ops.layer_parts import lambda_of_vectors, normalise_heads


class HeadNorm(nn.Module):
    r"""RMSNorm per head with a fixed factor.

    .. math:: \mathrm{head}_i = (1 - \lambda_\mathrm{init})\,\mathrm{LN}(\mathrm{DiffAttn}_i)

    The factor is part of the norm (Appendix G): a layer without head norm has no factor either.

    Source: arXiv:2410.05258v2, Eq. (3).

    Args:
        value_dim: Dv, channels of one head.
        affine: Learn a scale ``[Dv]``, shared by all heads, starting at 1.
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


LAMBDA_NAMES = ("lambda_q1", "lambda_k1", "lambda_q2", "lambda_k2")
LAMBDA_STD = 0.1  # standard deviation of the vectors' initial values


class LambdaVectors(nn.Module):
    """λ of a layer of V1 or Shared DIFF, the same for every token: ``formulas.diff_lambda``.

    The vectors stay float32 in a 16-bit model: ``half()`` and ``to(torch.bfloat16)`` move them and
    round nothing. They are a separate module because sharding needs one dtype per module. With
    FSDP2, call ``fully_shard`` on this module before the block that holds it.

    Source: arXiv:2410.05258v2, Eq. (2).
    """

    def __init__(self, head_dim: int) -> None:
        super().__init__()
        for name in LAMBDA_NAMES:
            vector = torch.empty(head_dim, dtype=torch.float32)
            self.register_parameter(name, nn.Parameter(vector))

    @torch.no_grad()
    def reset_parameters(self) -> None:
        """Draw the vectors from N(0, 0.1²), in the order of their names in Eq. (2)."""
        for name in LAMBDA_NAMES:
            getattr(self, name).normal_(0.0, LAMBDA_STD)

    def forward(self, lambda_init: float) -> Tensor:
        """λ, scalar ``[]``, float32 also under autocast."""
        q1, k1, q2, k2 = (getattr(self, name) for name in LAMBDA_NAMES)
        return lambda_of_vectors(q1, k1, q2, k2, lambda_init)

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> "LambdaVectors":
        """As ``nn.Module``, but a conversion to a 16-bit dtype yields float32."""

        def unrounded(x: Tensor) -> Tensor:
            y = fn(x)
            in_16_bits = y.dtype in (torch.bfloat16, torch.float16)
            return x.to(y.device, torch.float32) if in_16_bits else y

        return super()._apply(unrounded, recurse)


class SwiGLU(nn.Module):
    r"""Gated feed-forward network without biases.

    .. math:: \mathrm{SwiGLU}(X) = (\mathrm{swish}(X W^G) \odot X W_1) W_2

    Source: arXiv:2410.05258v2, after Eq. (5).

    Args:
        intermediate_size: Width inside, in channels; the papers use 8/3 of ``hidden_size``.
    """

    def __init__(self, hidden_size: int, intermediate_size: int) -> None:
        super().__init__()
        self.gate_proj = nn.Linear(hidden_size, intermediate_size, bias=False)
        self.up_proj = nn.Linear(hidden_size, intermediate_size, bias=False)
        self.down_proj = nn.Linear(intermediate_size, hidden_size, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        """``[..., hidden_size]`` to the same shape and dtype."""
        return self.down_proj(F.silu(self.gate_proj(x)) * self.up_proj(x))
