"""DEX: a pretrained softmax layer, minus λ times a learned linear map of each head's output."""

from torch import Tensor, nn

from diffattn.layers.diff_attention import DiffAttention
from diffattn.layers.gated_attention import AfterAttention


class DexAttention(AfterAttention, DiffAttention):
    r"""Softmax attention with a differential operation on every head's output.

    .. math:: O' = O - \lambda\,O W_D, \quad O = \mathrm{softmax}(s Q K^\top) V

    All heads of a layer share :math:`W_D` (``dex_proj``), ``[D, D]``, and λ. After a conversion
    :math:`W_D = 0`: the output is that of softmax attention, and :math:`W_D` has a gradient.
    Without head norm :math:`I - \lambda W_D` folds into the output projection, so the layer has
    another parametrization but computes no new function.

    Two things differ from the paper. λ is V1's learned number and starts near λ_init; the paper
    anneals it from 0 over the first steps. All heads are adapted; the paper selects some heads.

    Source: arXiv:2505.16333, section 3 (DEX).

    Arguments are those of :class:`DiffAttention`. ``num_heads`` is that of the softmax model, and
    heads are not normalised by default.
    """

    query_maps = 1
    key_maps = 1
    value_width = 1
    normalises_heads = False

    def _make_lambda_projection(self) -> None:
        self.dex_proj = nn.Linear(self.head_dim, self.head_dim, bias=False)

    def output_lambda(self, x: Tensor) -> Tensor:
        """λ of the layer, the same for every token."""
        return self.lam()

    def combined(self, out: Tensor, lam: Tensor) -> Tensor:
        """``O - λ O W_D``, ``[B, T, H, D]``."""
        return out - lam * self.dex_proj(out)
