"""Attention with one thing changed: the controls that say what makes a difference.

Each layer differs from one of the papers' in what its docstring names, and in nothing else. A lead
that a control has too is no effect of what the control lacks.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from diffattn.layers.attention import AttentionLayer
from diffattn.layers.diff_attention_v2 import DiffAttentionV2
from diffattn.layers.softmax_attention import SoftmaxAttention
from diffattn.ops.diff_attention.api import diff_attention
from diffattn.ops.lambda_param import lambda_init as scheduled_lambda_init
from diffattn.ops.lambda_param import sigmoid_lambda

SUBTRACTED_MEAN = 0.7
"""Share of the mean value that :class:`MeanFreeAttention` takes off."""
CONSTANT_LAMBDA = 0.5
"""λ where V2's starts: σ(0)."""


class NoAttention(nn.Module):
    """Nothing at all: the output is zero, and tokens never meet.

    It has no parameters. Caches hold zeros, by which decoding counts tokens.

    Args:
        hidden_size: Unused; the interface is that of the other layers.
        num_heads: H, of the zeros that a cache keeps.
        head_dim: D, their width.
        num_kv_heads: Hkv. Default: ``num_heads``.
        layer_idx: Of the cache.
        **options: Unused.
    """

    def __init__(
        self,
        hidden_size: int,
        num_heads: int,
        head_dim: int,
        *,
        num_kv_heads: int | None = None,
        layer_idx: int = 0,
        **options: Any,
    ) -> None:
        super().__init__()
        self.num_heads = num_heads
        self.num_kv_heads = num_heads if num_kv_heads is None else num_kv_heads
        self.head_dim = head_dim
        self.layer_idx = layer_idx

    def forward(
        self,
        x: Tensor,
        position_embeddings: tuple[Tensor, Tensor] | None = None,
        *,
        attend: Callable[..., Tensor] | None = None,
    ) -> Tensor:
        """``[B, T, hidden_size]`` to zeros of the same shape and dtype."""
        if attend is not None:
            q = x.new_zeros(*x.shape[:2], self.num_heads, self.head_dim)
            kv = x.new_zeros(*x.shape[:2], self.num_kv_heads, self.head_dim)
            attend(q, kv, kv)
        return torch.zeros_like(x)


class HalvedAttention(SoftmaxAttention):
    """Softmax attention times ½: the output's scale of V2 at the start, without a second map."""

    def forward(self, x: Tensor, *arguments: Any, **options: Any) -> Tensor:
        """As :meth:`SoftmaxAttention.forward`, times ½."""
        return super().forward(x, *arguments, **options) / 2


class MeanFreeAttention(SoftmaxAttention):
    r"""Softmax attention minus a constant times the mean of the values that a token sees.

    .. math:: O = \mathrm{softmax}(s Q K^\top) V - 0.7\,\mathrm{mean}(V)

    It is differential attention whose second map is uniform: it can subtract what all tokens have
    in common, and no noise that depends on the token.
    """

    operator: Callable[..., Tensor] = staticmethod(diff_attention)

    def queries_keys(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Queries ``[B, T, H, 2, D]``, those of the second map zero; keys ``[B, T, Hkv, D]``."""
        q, k = super().queries_keys(x)
        return torch.stack([q, torch.zeros_like(q)], dim=3), k

    def lambdas(self, x: Tensor) -> tuple[Tensor]:
        """The constant, float32."""
        return (torch.tensor(SUBTRACTED_MEAN, device=x.device),)


class GatedAttention(DiffAttentionV2):
    r"""V2 with its λ as a gate and no second map.

    .. math:: O = (1 - \sigma(X W_\lambda))\,\mathrm{softmax}(s Q K^\top) V
    """

    query_maps = 1

    def forward(
        self,
        x: Tensor,
        position_embeddings: tuple[Tensor, Tensor] | None = None,
        *,
        attend: Callable[..., Tensor] | None = None,
    ) -> Tensor:
        """As :meth:`AttentionLayer.forward`; ``attend(q, k, v)`` gets no λ."""
        attend = attend or SoftmaxAttention.operator
        gate = 1 - sigmoid_lambda(self.lambda_proj(x))[..., None]

        def gated(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
            out = attend(q, k, v)
            return (gate * out).to(out.dtype)

        return super().forward(x, position_embeddings, attend=gated)

    def lambdas(self, x: Tensor) -> tuple[()]:  # type: ignore[override]
        """None: the gate is applied here."""
        return ()


class ConstantLambdaAttention(SoftmaxAttention):
    r"""V2 with λ = ½ for every token and head."""

    query_maps = 2
    operator: Callable[..., Tensor] = staticmethod(diff_attention)

    def lambdas(self, x: Tensor) -> tuple[Tensor]:
        """The constant, float32."""
        return (torch.tensor(CONSTANT_LAMBDA, device=x.device),)


class AddedMapsAttention(DiffAttentionV2):
    r"""V2 whose second map is added: twice the queries, and nothing subtracted.

    .. math:: O = (\mathrm{softmax}(s Q_1 K^\top) + \sigma(X W_\lambda)\,
              \mathrm{softmax}(s Q_2 K^\top)) V
    """

    def lambdas(self, x: Tensor) -> tuple[Tensor]:
        """λ of every token and head with the other sign."""
        return (-super().lambdas(x)[0],)


class TokenLambdaAttention(AttentionLayer):
    r"""V1 with V2's λ: one per token and head, :math:`\sigma(X W_\lambda)`.

    Keys, values, head norm and its factor are V1's.
    """

    query_maps = 2
    key_maps = 2
    value_width = 2
    operator = staticmethod(diff_attention)

    def __init__(
        self,
        hidden_size: int,
        num_heads: int,
        head_dim: int,
        *,
        num_kv_heads: int | None = None,
        layer_idx: int = 0,
        lambda_bias: bool = False,
        head_norm: bool = True,
        head_norm_affine: bool = True,
        head_norm_eps: float = 1e-5,
    ) -> None:
        super().__init__(hidden_size, num_heads, head_dim, num_kv_heads, layer_idx)
        self.lambda_proj = nn.Linear(hidden_size, num_heads, bias=lambda_bias)
        self._make_output()
        factor = 1.0 - scheduled_lambda_init(layer_idx)
        self._make_head_norm(head_norm, head_norm_affine, head_norm_eps, factor)

    def lambdas(self, x: Tensor) -> tuple[Tensor]:
        """λ of every token and head, ``[B, T, H]``, float32."""
        return (sigmoid_lambda(self.lambda_proj(x)),)
