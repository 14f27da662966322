"""SwiGLU feed-forward network."""

from torch import Tensor, nn
from torch.nn import functional as F


class SwiGLU(nn.Module):
    r"""Gated feed-forward network without biases.

    .. math:: \mathrm{SwiGLU}(X) = (\mathrm{swish}(X W^G) \odot X W_1) W_2

    Source: arXiv:2410.05258v2, after Eq. (5).

    Args:
        hidden_size: Width of the residual stream, in channels.
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
