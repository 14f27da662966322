"""Differential attention as in the DIFF Transformer (V1)."""

from collections.abc import Callable

import torch
from torch import Tensor, nn

from diffattn.layers.heads import resolve_kv_heads
from diffattn.layers.norm import HeadNorm
from diffattn.ops.diff_attention.api import diff_attention
from diffattn.ops.lambda_param import diff_lambda
from diffattn.ops.lambda_param import lambda_init as scheduled_lambda_init
from diffattn.ops.rotary import apply_rotary

LAMBDA_NAMES = ("lambda_q1", "lambda_k1", "lambda_q2", "lambda_k2")
LAMBDA_STD = 0.1  # of the λ vectors at the start


class DiffAttention(nn.Module):
    r"""Multi-head differential attention (V1).

    .. math:: \mathrm{head}_i = (1 - \lambda_\mathrm{init})\,\mathrm{LN}(\mathrm{DiffAttn}_i(X)),
              \quad Y = \mathrm{Concat}(\mathrm{head}_1, \ldots, \mathrm{head}_h) W^O

    The softmax twin with the same parameters has ``2 * num_heads`` heads of the same width. λ is
    one float32 number per layer; at the start it lies near λ_init with a deviation of about
    0.01 √(2D), may leave [0, 1], and is never clamped. Keep its vectors out of weight decay.

    Source: arXiv:2410.05258v2, Eq. (3).

    Args:
        hidden_size: Width of the residual stream, in channels.
        num_heads: H, differential heads.
        head_dim: D, width of one query or key; values are 2D wide.
        num_kv_heads: Hkv, divides ``num_heads``. Default: ``num_heads``.
        layer_idx: Global 0-based index of the layer; sets λ_init.
        lambda_init: Constant part of λ. Default: the paper's depth schedule.
        head_norm: RMSNorm per head with factor 1 − λ_init; False drops both.
        head_norm_affine: Learn the norm's scale ``[2D]``.
        head_norm_eps: Added to the mean square.

    Raises:
        ConfigError: Head counts below 1 or not divisible.
    """

    q_proj: nn.Linear
    k_proj: nn.Linear
    lambda_q1: nn.Parameter
    lambda_k1: nn.Parameter
    lambda_q2: nn.Parameter
    lambda_k2: nn.Parameter

    def __init__(
        self,
        hidden_size: int,
        num_heads: int,
        head_dim: int,
        *,
        num_kv_heads: int | None = None,
        layer_idx: int = 0,
        lambda_init: float | None = None,
        head_norm: bool = True,
        head_norm_affine: bool = True,
        head_norm_eps: float = 1e-5,
    ) -> None:
        super().__init__()
        self.hidden_size = hidden_size
        self.num_heads = num_heads
        self.num_kv_heads = resolve_kv_heads(type(self).__name__, num_heads, num_kv_heads, head_dim)
        self.head_dim = head_dim
        self.layer_idx = layer_idx
        self.lambda_init = scheduled_lambda_init(layer_idx) if lambda_init is None else lambda_init
        value_dim = 2 * head_dim
        self._make_query_key_projections()
        self.v_proj = nn.Linear(hidden_size, self.num_kv_heads * value_dim, bias=False)
        self.o_proj = nn.Linear(num_heads * value_dim, hidden_size, bias=False)
        for name in LAMBDA_NAMES:
            vector = torch.normal(0.0, LAMBDA_STD, (head_dim,), dtype=torch.float32)
            self.register_parameter(name, nn.Parameter(vector))
        self.subln = (
            HeadNorm(
                value_dim,
                affine=head_norm_affine,
                eps=head_norm_eps,
                factor=1.0 - self.lambda_init,
            )
            if head_norm
            else nn.Identity()
        )

    def _make_query_key_projections(self) -> None:
        heads, kv_heads = self.num_heads, self.num_kv_heads
        self.q_proj = nn.Linear(self.hidden_size, heads * 2 * self.head_dim, bias=False)
        self.k_proj = nn.Linear(self.hidden_size, kv_heads * 2 * self.head_dim, bias=False)

    def lam(self) -> Tensor:
        """λ of this layer, scalar ``[]``, float32 also under autocast and in a bfloat16 model.

        Source: arXiv:2410.05258v2, Eq. (2).
        """
        return diff_lambda(
            self.lambda_q1, self.lambda_k1, self.lambda_q2, self.lambda_k2, self.lambda_init
        )

    def queries_keys(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Queries ``[B, T, H, 2, D]`` and keys ``[B, T, Hkv, 2, D]`` of both maps, unrotated."""
        q = self.q_proj(x).unflatten(-1, (self.num_heads, 2, self.head_dim))
        k = self.k_proj(x).unflatten(-1, (self.num_kv_heads, 2, self.head_dim))
        return q, k

    def forward(
        self,
        x: Tensor,
        position_embeddings: tuple[Tensor, Tensor] | None = None,
        *,
        attend: Callable[..., Tensor] = diff_attention,
    ) -> Tensor:
        """Attend from every token of ``x``.

        Args:
            x: ``[B, T, hidden_size]``, already normalised.
            position_embeddings: cos and sin of :func:`diffattn.rotary_embedding`, or ``None``
                for no position information.
            attend: Called as ``attend(q, k, v, lam)``; bind masks or a cache here, for example
                ``functools.partial(diff_attention, key_padding_mask=mask)``.

        Returns:
            ``[B, T, hidden_size]``, dtype of ``x`` (of the products under autocast).
        """
        q, k = self.queries_keys(x)
        v = self.v_proj(x).unflatten(-1, (self.num_kv_heads, 2 * self.head_dim))
        if position_embeddings is not None:
            q, k = apply_rotary(q, *position_embeddings), apply_rotary(k, *position_embeddings)
        out = attend(q, k, v, self.lam())  # [B, T, H, 2D]
        return self.o_proj(self.subln(out).flatten(2))
