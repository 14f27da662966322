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
        layer_idx: Global 0-based index of the layer; sets λ_init.
        lambda_init: Constant part of λ. Default: the paper's depth schedule.
        **options: Of every :class:`~diffattn.layers.attention.AttentionLayer`. Without
            ``head_norm`` the factor 1 − λ_init is left out too.
    """

    query_maps = 2
    key_maps = 2
    value_width = 2
    normalises_heads = True
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
        layer_idx: int = 0,
        lambda_init: float | None = None,
        **options: Any,
    ) -> None:
        self.lambda_init = scheduled_lambda_init(layer_idx) if lambda_init is None else lambda_init
        options |= {"layer_idx": layer_idx, "lambda_vectors": LambdaVectors(head_dim)}
        super().__init__(hidden_size, num_heads, head_dim, **options)
        self.lambda_bias.reset_parameters()

    def lam(self) -> Tensor:
        """λ of this layer, scalar ``[]``, float32 also under autocast and in a bfloat16 model.

        Source: arXiv:2410.05258v2, Eq. (2).
        """
        return self.lambda_bias(self.lambda_init)

    def lambdas(self, x: Tensor) -> tuple[Tensor]:
        """λ of the layer, the same for every token."""
        return (self.lam(),)
