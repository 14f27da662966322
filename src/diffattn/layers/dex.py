"""DEX: a pretrained softmax layer, from whose outputs a learned map of them is subtracted."""

from collections.abc import Callable

from torch import Tensor, nn

from diffattn.layers.diff_attention import DiffAttention
from diffattn.ops.softmax_attention import softmax_attention


class DexAttention(DiffAttention):
    r"""Softmax attention with a differential operation on every head's output.

    .. math:: O' = O - \lambda\,O W_D, \quad O = \mathrm{softmax}(s Q K^\top) V

    All heads of a layer share :math:`W_D` (``dex_proj``), ``[D, D]``, and λ. While
    :math:`W_D = 0`, as after a conversion, the output is softmax's, and the gradient of
    :math:`W_D` is not 0, for λ is not.

    Two things differ from the paper. λ is V1's learned number, near λ_init from the first step on;
    the paper anneals it from 0 over the first steps of training. Every head is adapted; the paper
    chooses heads by statistics of the pretrained model.

    Source: arXiv:2505.16333, section 3 (DEX).

    Args:
        hidden_size: Width of the residual stream, in channels.
        num_heads: H, those of the softmax model.
        head_dim: D, width of one query, key and value.
        **options: Keyword arguments of :class:`DiffAttention`. Heads are not normalised by default.
    """

    query_maps = 1
    key_maps = 1
    value_width = 1
    normalises_heads = False

    def _make_lambda_projection(self) -> None:
        self.dex_proj = nn.Linear(self.head_dim, self.head_dim, bias=False)

    def forward(
        self,
        x: Tensor,
        position_embeddings: tuple[Tensor, Tensor] | None = None,
        *,
        attend: Callable[..., Tensor] | None = None,
    ) -> Tensor:
        """As :meth:`AttentionLayer.forward`; ``attend(q, k, v)`` gets no λ."""
        attend = attend or softmax_attention

        def attend_and_subtract(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
            out = attend(q, k, v)
            return (out - self.lam() * self.dex_proj(out)).to(out.dtype)

        return super().forward(x, position_embeddings, attend=attend_and_subtract)

    def lambdas(self, x: Tensor) -> tuple[()]:  # type: ignore[override]
        """None for the operator."""
        return ()
