"""Differential attention as in the DIFF Transformer (V1)."""

from operator import attrgetter
from typing import Any

from torch import Tensor

from diffattn.layers.attention import AttentionLayer
from diffattn.layers.lambda_vectors import LambdaVectors
from diffattn.ops.attention import diff_attention
from diffattn.ops.inputs.lambda_param import lambda_init as scheduled_lambda_init


class DiffAttention(AttentionLayer):
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
        **options: ``qkv_bias`` and ``qk_norm_eps``, see
            :class:`~diffattn.layers.attention.AttentionLayer`.

    Raises:
        ConfigError: Head counts below 1 or not divisible.
    """

    query_maps = 2
    key_maps = 2
    value_width = 2
    operator = staticmethod(diff_attention)
    lambda_bias: LambdaVectors
    # As the paper names them; they are parameters of ``lambda_bias``.
    lambda_q1 = property(attrgetter("lambda_bias.lambda_q1"))
    lambda_k1 = property(attrgetter("lambda_bias.lambda_k1"))
    lambda_q2 = property(attrgetter("lambda_bias.lambda_q2"))
    lambda_k2 = property(attrgetter("lambda_bias.lambda_k2"))

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
        **options: Any,
    ) -> None:
        super().__init__(
            hidden_size, num_heads, head_dim, num_kv_heads, layer_idx, LambdaVectors(head_dim),
            **options,
        )  # fmt: skip
        self.lambda_init = scheduled_lambda_init(layer_idx) if lambda_init is None else lambda_init
        self._make_output()
        self.lambda_bias.reset_parameters()
        factor = 1.0 - self.lambda_init
        self._make_head_norm(head_norm, head_norm_affine, head_norm_eps, factor)

    def lam(self) -> Tensor:
        """λ of this layer, scalar ``[]``, float32 also under autocast and in a bfloat16 model.

        Source: arXiv:2410.05258v2, Eq. (2).
        """
        return self.lambda_bias(self.lambda_init)

    def lambdas(self, x: Tensor) -> tuple[Tensor]:
        """λ of the layer, the same for every token."""
        return (self.lam(),)
