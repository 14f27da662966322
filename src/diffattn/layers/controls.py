"""Controls: attention layers with one change.

The docstring of each control names the layer and the part that it changes. If a control without a
part has the same gain as the layer, the part is not the cause of the gain.
"""

from collections.abc import Callable
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor, nn

from diffattn.errors import ConfigError
from diffattn.layers.attention import SoftmaxAttention
from diffattn.layers.diff_attention import DiffAttention, DiffAttentionV2
from diffattn.layers.gated_attention import TokenAfterAttention
from diffattn.layers.shared_diff_attention import SharedDiffAttention
from diffattn.ops.attention import diff_attention, diff_attention_maps
from diffattn.ops.inputs.formulas import lambda_init as scheduled_lambda_init
from diffattn.ops.inputs.masking import AttentionMask, at_least_float32, isolated, repeat_heads


class NoAttention(nn.Module):
    """The no-attention control: the output is zero, so no token reads another one.

    It has no parameters. Its key-value cache holds zeros, so that decoding can count the tokens
    read. ``num_heads``, ``num_kv_heads`` and ``head_dim`` set the cache's shape alone.
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
        """Zeros with the shape ``[B, T, hidden_size]`` and dtype of ``x``."""
        if attend is not None:
            q = x.new_zeros(*x.shape[:2], self.num_heads, self.head_dim)
            kv = x.new_zeros(*x.shape[:2], self.num_kv_heads, self.head_dim)
            attend(q, kv, kv)
        return torch.zeros_like(x)


class HalvedAttention(SoftmaxAttention):
    """Softmax attention times ½: V2's output has this size at the start of training."""

    def forward(self, x: Tensor, *arguments: Any, **options: Any) -> Tensor:
        """As :meth:`SoftmaxAttention.forward`, times ½."""
        return super().forward(x, *arguments, **options) / 2


class AcrossGroupsAttention(TokenAfterAttention):
    r"""V2 whose pairs are query heads i and i + H instead of neighbours.

    .. math:: O_i = \mathrm{softmax}(s Q_i K_g^\top) V_g - \sigma(X W_\lambda)_i\,
              \mathrm{softmax}(s Q_{i + H} K_{g'}^\top) V_{g'}

    Query head j reads key/value head ``j // (2H / Hkv)`` as in V2. So the two heads of a pair read
    different keys and values, unless there is only one key/value head, and the second output cannot
    cancel noise of the first. The V2 note calls this pairing unstable. The layer has 2H attention
    maps, one per query head, as the two maps of a pair act on different values.
    """

    def queries_keys(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Queries ``[B, T, 2H, D]`` and keys ``[B, T, Hkv, D]``."""
        q, k = super().queries_keys(x)
        return q.flatten(2, 3), k

    def combined(self, out: Tensor, lam: Tensor) -> Tensor:
        """Outputs of the first half of the query heads minus λ times those of the second."""
        first, second = out.chunk(2, dim=2)
        return first - lam * second


class ConstantLambdaAttention(SoftmaxAttention):
    r"""V2 with λ = ½ for every token and head: the value at which V2's λ starts, σ(0)."""

    query_maps = 2
    operator: Callable[..., Tensor] = staticmethod(diff_attention)
    constant = 0.5

    def lambdas(self, x: Tensor) -> tuple[Tensor]:
        """The constant, float32."""
        return (torch.tensor(self.constant, device=x.device),)


class WholeDifferenceAttention(ConstantLambdaAttention):
    r"""V2 without λ: λ = 1, so that every row of the difference sums to 0.

    .. math:: O = (\mathrm{softmax}(s Q_1 K^\top) - \mathrm{softmax}(s Q_2 K^\top)) V

    The output at the first token, which sees only itself, is 0.
    """

    constant = 1.0


class MeanFreeAttention(ConstantLambdaAttention):
    r"""Softmax attention minus a constant times the mean of the values that a token sees.

    .. math:: O = \mathrm{softmax}(s Q K^\top) V - 0.7\,\mathrm{mean}(V)

    It is differential attention whose second map is uniform. It can subtract what all tokens have
    in common, but no noise that depends on the token.
    """

    query_maps = 1
    constant = 0.7

    def queries_keys(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Queries ``[B, T, H, 2, D]``, those of the second map zero; keys ``[B, T, Hkv, D]``."""
        q, k = super().queries_keys(x)
        return torch.stack([q, torch.zeros_like(q)], dim=3), k


class RawLambdaAttention(DiffAttentionV2):
    r"""V2 without the sigmoid: λ is the projection itself, starts near 0 and has no bounds.

    .. math:: O = (\mathrm{softmax}(s Q_1 K^\top) - (X W_\lambda)\,
              \mathrm{softmax}(s Q_2 K^\top)) V
    """

    lambda_of = staticmethod(at_least_float32)


class AddedMapsAttention(DiffAttentionV2):
    r"""V2 whose second map is added instead of subtracted.

    .. math:: O = (\mathrm{softmax}(s Q_1 K^\top) + \sigma(X W_\lambda)\,
              \mathrm{softmax}(s Q_2 K^\top)) V
    """

    def lambdas(self, x: Tensor) -> tuple[Tensor]:
        """−λ of every token and head, ``[B, T, H]``: the operator subtracts it."""
        return (-super().lambdas(x)[0],)


class MatchedAddedMapsAttention(AddedMapsAttention):
    r"""V2 whose second map is added, rescaled: rows of the acting map sum to 1 − λ as in V2.

    .. math:: O = \frac{1 - \lambda}{1 + \lambda}\,(\mathrm{softmax}(s Q_1 K^\top) + \lambda\,
              \mathrm{softmax}(s Q_2 K^\top)) V,\quad \lambda = \sigma(X W_\lambda)

    Up to the factor, only the sign of the second map differs from V2.
    """

    def forward(self, x: Tensor, *arguments: Any, attend: Any = None, **options: Any) -> Tensor:
        """As :meth:`AttentionLayer.forward`."""

        def attend_and_scale(q: Tensor, k: Tensor, v: Tensor, lam: Tensor) -> Tensor:
            out = (attend or self.operator)(q, k, v, lam)
            return (out * ((1 + lam) / (1 - lam))[..., None]).to(out.dtype)  # lam is −λ

        return super().forward(x, *arguments, attend=attend_and_scale, **options)


class AddedMapsV1(DiffAttention):
    r"""V1 whose second map is added instead of subtracted.

    .. math:: \mathrm{head} = (1 - \lambda_\mathrm{init})\,
              \mathrm{LN}((A_1 + |\lambda| A_2) V)

    V1's λ has no bounds. Without the absolute value some models learn a negative λ and subtract.
    """

    def lambdas(self, x: Tensor) -> tuple[Tensor]:
        """−abs(λ) of the layer: the operator subtracts it."""
        return (-super().lambdas(x)[0].abs(),)


class UniformSecondMap(DiffAttention):
    r"""V1 whose second map is uniform over the tokens that a query sees.

    .. math:: \mathrm{head} = (1 - \lambda_\mathrm{init})\,
              \mathrm{LN}(A_1 V - \lambda\,\mathrm{mean}(V))

    λ, head norm and its factor, heads and values are as in V1. The projections of queries and keys
    are half as wide. The second map's queries are zero, so any keys do: it gets those of the first.
    """

    query_maps = 1
    key_maps = 1

    def queries_keys(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Queries ``[B, T, H, 2, D]``, those of the second map zero; keys ``[B, T, Hkv, 2, D]``."""
        q, k = super().queries_keys(x)
        return torch.stack([q, torch.zeros_like(q)], dim=3), torch.stack([k, k], dim=3)


class TokenLambdaAttention(DiffAttentionV2):
    r"""V1 with V2's λ: one per token and head, :math:`\sigma(X W_\lambda)`.

    Keys, values, head norm and its factor are as in V1.
    """

    key_maps = 2
    value_width = 2
    normalises_heads = True

    def __init__(self, *sizes: int, layer_idx: int = 0, **options: Any) -> None:
        self.lambda_init = scheduled_lambda_init(layer_idx)
        super().__init__(*sizes, layer_idx=layer_idx, **options)


class _ThroughMaps:
    """Mixin of layers that compute the map acting on V from whole A1 and A2, without a kernel."""

    acting_map: Callable[[Tensor, Tensor, Tensor], Tensor]
    """The map that acts on V, from A1, A2 ``[B, H, T, S]`` and λ ``[B, H, T, 1]``."""

    def operator(
        self, q: Tensor, k: Tensor, v: Tensor, lam: Tensor | float, **options: Any
    ) -> Tensor:
        """Output ``[B, T, H, Dv]``; ``options`` are the masks of :func:`diff_attention_maps`."""

        def attend(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
            added, subtracted, _ = diff_attention_maps(q, k, lam, **options)
            rows = torch.as_tensor(lam, device=q.device).expand(*q.shape[:3])
            signed = self.acting_map(added, subtracted, rows.transpose(1, 2)[..., None])
            v = repeat_heads(v, q.shape[2]).transpose(1, 2)
            return torch.matmul(signed.to(v.dtype), v).transpose(1, 2)

        return isolated(attend, q, k, v, mask=AttentionMask(**options))


class ShuffledMapAttention(_ThroughMaps, DiffAttentionV2):
    r"""V2 whose second map has its weights at shuffled keys: it cannot know where noise lies.

    .. math:: O = (A_1 - \sigma(X W_\lambda)\,A_2 P) V

    P permutes the keys that a query sees. There is one random P for each number of visible keys,
    used by all heads and layers, so decoding token by token gives the same output. The weights of
    each row keep their sizes.
    """

    def acting_map(self, added: Tensor, subtracted: Tensor, lam: Tensor) -> Tensor:
        """A1 − λA2P. A key counts as visible if A2 of any head gives it a weight above 0."""
        visible = (subtracted > 0).any(1, keepdim=True)  # one head's weight may underflow to 0
        rank = visible.cumsum(-1)  # rank of a key among the visible keys, from 1
        size = subtracted.shape[-1] + 1
        keys = torch.arange(size - 1, device=rank.device).expand(rank.shape)
        by_rank = rank.new_zeros(*rank.shape[:-1], size).scatter(-1, rank * visible, keys)
        orders = shuffled_ranks(-(-size // 256) * 256).to(rank.device)
        keys = by_rank.gather(-1, orders[rank[..., -1:], rank]).expand(subtracted.shape)
        return added - lam * subtracted.gather(-1, keys) * visible


@lru_cache(maxsize=8)
def shuffled_ranks(size: int) -> Tensor:
    """int64 ``[size, size]``: entries 1 to n of row n are a random permutation of 1 to n."""
    ranks = torch.zeros(size, size, dtype=torch.int64)
    for n in range(1, size):
        order = torch.randperm(n, generator=torch.Generator().manual_seed(n))
        ranks[n, 1 : n + 1] = order + 1
    return ranks


class MapNormAttention(_ThroughMaps, SharedDiffAttention):
    r"""Shared DIFF that normalises the attention map instead of the head's output.

    .. math:: \mathrm{head} = (1 - \lambda_\mathrm{init})\,\frac{A}{\lVert A \rVert_2} V,\quad
              A = A_1 - \lambda A_2 \text{ over the keys that a token sees}

    The paper says that GroupNorm acts on "attention scores", without a formula. This is one reading
    of it: the RMS norm of every row of every head over its n visible keys, divided by √n, as else
    the output would grow with n. Hidden keys are 0 in A and add nothing to a sum, so the norm is
    causal. No scale is learned, as rows have no fixed width. It never runs on fused kernels.

    Source: arXiv:2501.17900, Shared DIFF attention (GroupNorm on attention scores).

    Arguments are those of :class:`SharedDiffAttention`. ``head_norm_eps`` is added to the sum of
    squares of a row; with ``head_norm=True`` also to the mean square of a head's output.
    """

    normalises_heads = False

    def __init__(self, *sizes: int, head_norm_eps: float = 1e-5, **options: Any) -> None:
        super().__init__(*sizes, head_norm_eps=head_norm_eps, **options)
        self.map_norm_eps = head_norm_eps

    def fold(self) -> DiffAttention:
        """Always raise: no V1 layer computes this function, as V1 normalises outputs."""
        raise ConfigError("MapNormAttention: fold must be left out, as V1 has no norm on maps.")

    def acting_map(self, added: Tensor, subtracted: Tensor, lam: Tensor) -> Tensor:
        """Rows of A1 − λA2, scaled to length 1 − λ_init."""
        signed = added - lam * subtracted
        squares = signed.square().sum(-1, keepdim=True)
        return (1.0 - self.lambda_init) * signed * (squares + self.map_norm_eps).rsqrt()
