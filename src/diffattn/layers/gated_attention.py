"""Gated attention: softmax attention whose output is weighted by a gate from the layer's input."""

from typing import Any

from torch import Tensor, nn

from diffattn.layers.attention import AttentionLayer
from diffattn.layers.diff_attention_v2 import DiffAttentionV2
from diffattn.ops.softmax_attention import softmax_attention


class AfterAttention(AttentionLayer):
    """Base of layers whose λ acts on the outputs of softmax attention, not on its maps."""

    def output_lambda(self, x: Tensor) -> Tensor:
        """λ, broadcastable to the outputs ``[B, T, heads, D]``."""
        raise NotImplementedError

    def combined(self, out: Tensor, lam: Tensor) -> Tensor:
        """The layer's heads ``[B, T, H, D]``, from softmax outputs ``[B, T, heads, D]`` and λ."""
        raise NotImplementedError

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
