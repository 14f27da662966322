"""The matched baseline: ordinary multi-head attention with the same interface."""

from collections.abc import Callable

from torch import Tensor, nn

from diffattn.layers.heads import resolve_kv_heads
from diffattn.layers.norm import HeadNorm
from diffattn.ops.rotary import apply_rotary
from diffattn.ops.softmax_attention import softmax_attention


class SoftmaxAttention(nn.Module):
    r"""Multi-head softmax attention without biases.

    .. math:: Y = \mathrm{Concat}(\mathrm{softmax}(s Q_i K_i^\top) V_i)\,W^O

    Source: arXiv:1706.03762, section 3.2.2.

    Args:
        hidden_size: Width of the residual stream, in channels.
        num_heads: H.
        head_dim: D.
        num_kv_heads: Hkv, divides ``num_heads``. Default: ``num_heads``.
        layer_idx: Kept for caches; the arithmetic does not depend on it.
        head_norm: RMSNorm per head with factor 1 (the paper's "+ GroupNorm" ablation).
        head_norm_affine: Learn the norm's scale ``[D]``.
        head_norm_eps: Added to the mean square.

    Raises:
        ConfigError: Head counts below 1 or not divisible.
    """

    def __init__(
        self,
        hidden_size: int,
        num_heads: int,
        head_dim: int,
        *,
        num_kv_heads: int | None = None,
        layer_idx: int = 0,
        head_norm: bool = False,
        head_norm_affine: bool = True,
        head_norm_eps: float = 1e-5,
    ) -> None:
        super().__init__()
        self.num_heads = num_heads
        self.num_kv_heads = resolve_kv_heads("SoftmaxAttention", num_heads, num_kv_heads, head_dim)
        self.head_dim = head_dim
        self.layer_idx = layer_idx
        self.q_proj = nn.Linear(hidden_size, num_heads * head_dim, bias=False)
        self.k_proj = nn.Linear(hidden_size, self.num_kv_heads * head_dim, bias=False)
        self.v_proj = nn.Linear(hidden_size, self.num_kv_heads * head_dim, bias=False)
        self.o_proj = nn.Linear(num_heads * head_dim, hidden_size, bias=False)
        self.subln = (
            HeadNorm(head_dim, affine=head_norm_affine, eps=head_norm_eps)
            if head_norm
            else nn.Identity()
        )

    def forward(
        self,
        x: Tensor,
        position_embeddings: tuple[Tensor, Tensor] | None = None,
        *,
        attend: Callable[..., Tensor] = softmax_attention,
    ) -> Tensor:
        """Attend from every token of ``x``.

        Args:
            x: ``[B, T, hidden_size]``, already normalised.
            position_embeddings: cos and sin of :func:`diffattn.rotary_embedding`, or ``None``.
            attend: Called as ``attend(q, k, v)``; bind masks or a cache here.

        Returns:
            ``[B, T, hidden_size]``, dtype of ``x`` (of the products under autocast).
        """
        q = self.q_proj(x).unflatten(-1, (self.num_heads, self.head_dim))
        k = self.k_proj(x).unflatten(-1, (self.num_kv_heads, self.head_dim))
        v = self.v_proj(x).unflatten(-1, (self.num_kv_heads, self.head_dim))
        if position_embeddings is not None:
            q, k = apply_rotary(q, *position_embeddings), apply_rotary(k, *position_embeddings)
        out = attend(q, k, v)  # [B, T, H, D]
        return self.o_proj(self.subln(out).flatten(2))
