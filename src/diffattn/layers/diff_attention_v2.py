"""Differential attention V2: λ per token and head, shared keys, no head norm."""

from collections.abc import Callable
from typing import Any

from torch import Tensor, nn

from diffattn.layers.attention import AttentionLayer
from diffattn.ops.attention import diff_attention
from diffattn.ops.layer_parts import lambda_of_logits


class DiffAttentionV2(AttentionLayer):
    r"""Multi-head differential attention, second version.

    .. math:: O = (\mathrm{softmax}(s Q_1 K^\top) - \sigma(X W_\lambda)\,
              \mathrm{softmax}(s Q_2 K^\top)) V

    The two queries of a pair share one key and value head. The softmax twin has ``num_heads``
    heads, too. There is no λ_init, and the output does not depend on the layer index.

    Source: DIFF V2 note (January 2026), DIFF V2 attention.

    Args:
        num_heads: H, output heads; there are 2H query heads.
        lambda_bias: Give the λ projection a bias.
        **options: Options of :class:`~diffattn.layers.attention.AttentionLayer`.
    """

    query_maps = 2
    operator = staticmethod(diff_attention)
    lambda_of: Callable[[Tensor], Tensor] = staticmethod(lambda_of_logits)
    """Function from logits ``[B, T, H]`` to λ; here the sigmoid."""

    def __init__(
        self,
        hidden_size: int,
        num_heads: int,
        head_dim: int,
        *,
        lambda_bias: bool = False,
        **options: Any,
    ) -> None:
        self.has_lambda_bias = lambda_bias
        super().__init__(hidden_size, num_heads, head_dim, **options)

    def _make_lambda_projection(self) -> None:
        self.lambda_proj = nn.Linear(self.hidden_size, self.num_heads, bias=self.has_lambda_bias)

    def lambdas(self, x: Tensor) -> tuple[Tensor]:
        """λ of every token and head, ``[B, T, H]``, float32."""
        # Hugging Face keeps this projection in float32 in a float16 model, and unquantised in a
        # quantised one. A module without floating-point weights gets x unchanged.
        weight = getattr(self.lambda_proj, "weight", None)  # in some quantised layers a method
        if not isinstance(weight, Tensor):
            weight = next((p for p in self.lambda_proj.parameters() if p.is_floating_point()), x)
        if weight.is_floating_point():
            x = x.to(weight.dtype)
        return (self.lambda_of(self.lambda_proj(x)),)
