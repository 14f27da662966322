"""Differential attention of the DIFF Transformer (V1), in groups, and its second version (V2)."""

from collections.abc import Callable
from operator import attrgetter
from typing import Any

from torch import Tensor, nn

from diffattn.errors import ConfigError
from diffattn.layers.attention import AttentionLayer
from diffattn.layers.parts import LambdaVectors
from diffattn.ops.attention import diff_attention
from diffattn.ops.inputs.formulas import lambda_init as scheduled_lambda_init
from diffattn.ops.layer_parts import lambda_of_logits


class DiffAttention(AttentionLayer):
    r"""Multi-head differential attention (V1).

    .. math:: \mathrm{head}_i = (1 - \lambda_\mathrm{init})\,\mathrm{LN}(\mathrm{DiffAttn}_i(X)),
              \quad Y = \mathrm{Concat}(\mathrm{head}_1, \ldots, \mathrm{head}_h) W^O

    The softmax twin with as many parameters has ``2 * num_heads`` heads of the same width. λ is
    one float32 number per layer. At the start it is near λ_init, with a standard deviation of about
    0.01 √(2D). It may leave [0, 1] and is never clamped. Exclude its vectors from weight decay.

    Source: arXiv:2410.05258v2, Eq. (3).

    Args:
        num_heads: H, differential heads.
        head_dim: D, width of one query or key; values are 2D wide.
        layer_idx: Global 0-based index of the layer; sets λ_init.
        lambda_init: Constant part of λ. Default: the paper's depth schedule.
        **options: Options of :class:`~diffattn.layers.attention.AttentionLayer`. Without
            ``head_norm`` the factor 1 − λ_init is left out too.
    """

    query_maps = 2
    key_maps = 2
    value_width = 2
    normalises_heads = True
    operator = staticmethod(diff_attention)
    lambda_bias: LambdaVectors
    # The paper's names for parameters of ``lambda_bias``.
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


class GroupedDiffAttention(DiffAttention):
    r"""V1 whose subtracted map is shared by a group of R added maps.

    .. math:: O_{g,r} = (\mathrm{softmax}(s Q_{g,r} K_1^\top) -
              \lambda\,\mathrm{softmax}(s Q_{g,R+1} K_2^\top)) V

    A group has R + 1 queries, and the last one makes the subtracted map. All maps of a group read
    one key/value head. λ, head norm and its factor are as in V1.

    Source: arXiv:2510.06949v1, Grouped Differential Attention.

    Args:
        num_heads: H, added maps and output heads.
        group_ratio: R, added maps per subtracted map; divides ``num_heads``. 1 is V1.
        **options: Keyword arguments of :class:`DiffAttention`; ``num_kv_heads`` divides H / R,
            which is its default.
    """

    def __init__(
        self, hidden_size: int, num_heads: int, head_dim: int, *, group_ratio: int, **options: Any
    ) -> None:
        if group_ratio < 1 or num_heads % group_ratio:
            raise ConfigError(
                f"GroupedDiffAttention: group_ratio must divide num_heads = {num_heads}, "
                f"got {group_ratio}."
            )
        self.group_ratio, self.query_maps = group_ratio, group_ratio + 1
        super().__init__(hidden_size, num_heads, head_dim, **options)


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
