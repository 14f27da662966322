"""The four vectors that make λ of one layer, as a separate module."""

from collections.abc import Callable

import torch
from torch import Tensor, nn

from diffattn.ops.layer_parts import lambda_of_vectors

LAMBDA_NAMES = ("lambda_q1", "lambda_k1", "lambda_q2", "lambda_k2")
LAMBDA_STD = 0.1  # standard deviation of the vectors' initial values


class LambdaVectors(nn.Module):
    r"""λ of a layer of V1 or Shared DIFF, the same for every token.

    .. math:: \lambda = e^{\lambda_{q1} \cdot \lambda_{k1}} - e^{\lambda_{q2} \cdot \lambda_{k2}}
              + \lambda_\mathrm{init}

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
