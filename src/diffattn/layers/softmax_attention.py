"""The matched baseline: ordinary multi-head attention with the same interface."""

from typing import Any

from diffattn.layers.attention import AttentionLayer
from diffattn.ops.softmax_attention import softmax_attention


class SoftmaxAttention(AttentionLayer):
    r"""Multi-head softmax attention.

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
        **options: ``qkv_bias`` and ``qk_norm_eps``, see
            :class:`~diffattn.layers.attention.AttentionLayer`.

    Raises:
        ConfigError: Head counts below 1 or not divisible.
    """

    operator = staticmethod(softmax_attention)

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
        **options: Any,
    ) -> None:
        super().__init__(hidden_size, num_heads, head_dim, num_kv_heads, layer_idx, **options)
        self._make_output()
        self._make_head_norm(head_norm, head_norm_affine, head_norm_eps)
