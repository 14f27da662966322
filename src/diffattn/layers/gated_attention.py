"""Layers whose λ acts on the output of softmax attention: gated attention and DEX."""

from collections.abc import Callable
from typing import Any

from torch import Tensor, nn

from diffattn.layers.attention import AttentionLayer
from diffattn.layers.diff_attention import DiffAttention, DiffAttentionV2
from diffattn.ops.softmax_attention import softmax_attention


class AfterAttention(AttentionLayer):
    """Base of layers whose λ acts on the outputs of softmax attention, not on its maps."""

    output_lambda: Callable[[Tensor], Tensor]
    """λ from the layer's input, broadcastable to the outputs ``[B, T, heads, D]``."""
    combined: Callable[[Tensor, Tensor], Tensor]
    """The layer's heads ``[B, T, H, D]``, from softmax outputs ``[B, T, heads, D]`` and λ."""

    def forward(self, x: Tensor, *arguments: Any, attend: Any = None, **options: Any) -> Tensor:
        """As :meth:`AttentionLayer.forward`, but ``attend(q, k, v)`` is called without λ."""
        lam = self.output_lambda(x)

        def attend_and_combine(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
            out = (attend or softmax_attention)(q, k, v)
            return self.combined(out, lam).to(out.dtype)

        return super().forward(x, *arguments, attend=attend_and_combine, **options)

    def lambdas(self, x: Tensor) -> Any:
        """Empty: the operator gets no λ."""
        return ()


class TokenAfterAttention(AfterAttention, DiffAttentionV2):
    """Base of layers that apply V2's λ, one per token and head, to outputs."""

    lambda_width = 1
    """How many λ each token and head has: 1, or D for one per channel."""

    def output_lambda(self, x: Tensor) -> Tensor:
        """λ, ``[B, T, H, 1 or D]``."""
        return DiffAttentionV2.lambdas(self, x)[0].unflatten(-1, (-1, self.lambda_width))


class GatedAttention(TokenAfterAttention):
    r"""Softmax attention with one gate per token and head: V2's λ, and no second map.

    .. math:: O = (1 - \sigma(X W_\lambda))\,\mathrm{softmax}(s Q K^\top) V

    The gate :math:`1 - \sigma(z) = \sigma(-z)` is the paper's with :math:`-W_\lambda` as weights.

    Source: arXiv:2505.06708, section 2.2 (gate after the weighted values, per head).
    """

    query_maps = 1

    def combined(self, out: Tensor, lam: Tensor) -> Tensor:
        """The output times the gate."""
        return (1 - lam) * out


class ElementGatedAttention(GatedAttention):
    r"""Softmax attention with one gate per token and channel of the output, as in Qwen3-Next.

    .. math:: O = (1 - \sigma(X W_\lambda)) \odot \mathrm{softmax}(s Q K^\top) V

    Source: arXiv:2505.06708, section 2.2 (gate after the weighted values, per channel).
    """

    def _make_lambda_projection(self) -> None:
        self.lambda_width = self.head_dim
        rows = self.num_heads * self.head_dim
        self.lambda_proj = nn.Linear(self.hidden_size, rows, bias=self.has_lambda_bias)


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
