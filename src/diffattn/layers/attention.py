"""The parts that all attention layers share, and the matched baseline."""

from collections.abc import Callable
from typing import Any

from torch import Tensor, nn

from diffattn.errors import ConfigError
from diffattn.layers.parts import HeadNorm
from diffattn.layers.saved_names import present_name
from diffattn.ops.layer_parts import rotate_both
from diffattn.ops.softmax_attention import softmax_attention


class AttentionLayer(nn.Module):
    """Projections, rotary positions, one call of the operator, head norm and output projection.

    A subclass sets the class attributes: maps per query and key, ``value_width`` (Dv / D), the
    operator, and whether heads are normalised by default. It also adds the parameters of λ.

    Every layer takes ``hidden_size`` (width of the residual stream), ``num_heads`` (H) and
    ``head_dim`` (D). Options: ``num_kv_heads`` (Hkv, divides ``num_heads``; default ``num_heads``),
    ``layer_idx`` (global, from 0), ``head_norm`` (RMSNorm per head, times 1 − λ_init in types with
    a λ_init; default :attr:`normalises_heads`), ``head_norm_affine`` (learn its scale ``[Dv]``;
    default True) and ``head_norm_eps`` (added to its mean square; default 1e-5).

    Two options come from other model families. ``qkv_bias`` (Qwen2) adds biases to queries, keys
    and values. ``qk_norm_eps`` (Qwen3) adds an RMSNorm over the channels of every query and key
    before rotation; its value is added to the mean square. All heads and both maps share one scale
    ``[D]`` for queries and one for keys, so the maps' queries differ in direction, not in size.

    Raises:
        ConfigError: A head count or ``head_dim`` is below 1, or head counts are not divisible.
    """

    query_maps = 1
    key_maps = 1
    group_ratio = 1
    value_width = 1
    normalises_heads = False
    operator: Callable[..., Tensor]
    lambda_init: float = 0.0

    def __init__(
        self,
        hidden_size: int,
        num_heads: int,
        head_dim: int,
        *,
        num_kv_heads: int | None = None,
        layer_idx: int = 0,
        lambda_vectors: nn.Module | None = None,
        head_norm: bool | None = None,
        head_norm_affine: bool = True,
        head_norm_eps: float = 1e-5,
        qkv_bias: bool = False,
        qk_norm_eps: float | None = None,
    ) -> None:
        super().__init__()
        if lambda_vectors is not None:
            # Registered first: optimizers and gradient norms depend on the order of parameters.
            self.lambda_bias = lambda_vectors
        where = type(self).__name__
        if num_heads < 1 or head_dim < 1:
            raise ConfigError(
                f"{where}: num_heads and head_dim must be 1 or more, "
                f"got {num_heads} and {head_dim}."
            )
        groups = num_heads // self.group_ratio
        num_kv_heads = groups if num_kv_heads is None else num_kv_heads
        if num_kv_heads < 1 or groups % num_kv_heads:
            name = "num_heads" if groups == num_heads else "num_heads / group_ratio"
            raise ConfigError(
                f"{where}: num_kv_heads must divide {name} = {groups}, got {num_kv_heads}."
            )
        self.hidden_size = hidden_size
        self.num_heads = num_heads
        self.num_kv_heads = num_kv_heads
        self.head_dim = head_dim
        self.layer_idx = layer_idx
        self.value_dim = self.value_width * head_dim
        self.qkv_bias = qkv_bias
        self._make_query_key_projections()
        self.v_proj = nn.Linear(hidden_size, num_kv_heads * self.value_dim, bias=qkv_bias)
        self.q_norm, self.k_norm = (
            nn.Identity() if qk_norm_eps is None else HeadNorm(head_dim, eps=qk_norm_eps)
            for _ in range(2)
        )
        self._make_lambda_projection()
        self.o_proj = nn.Linear(num_heads * self.value_dim, hidden_size, bias=False)
        self.head_norm: nn.Module = nn.Identity()
        if self.normalises_heads if head_norm is None else head_norm:
            self.head_norm = HeadNorm(
                self.value_dim,
                affine=head_norm_affine,
                eps=head_norm_eps,
                factor=1.0 - self.lambda_init,
            )

    def _make_query_key_projections(self) -> None:
        queries = self.num_heads // self.group_ratio * self.query_maps * self.head_dim
        keys = self.num_kv_heads * self.key_maps * self.head_dim
        self.q_proj = nn.Linear(self.hidden_size, queries, bias=self.qkv_bias)
        self.k_proj = nn.Linear(self.hidden_size, keys, bias=self.qkv_bias)

    def _make_lambda_projection(self) -> None:
        pass

    def _load_from_state_dict(
        self, state_dict: Any, prefix: str, *args: Any, **kwargs: Any
    ) -> None:
        """Load files with the parameter names of :mod:`diffattn.layers.saved_names` too."""
        for name in [name for name in state_dict if name.startswith(prefix)]:
            present = prefix + present_name(name.removeprefix(prefix))
            if present != name:
                state_dict[present] = state_dict.pop(name)
        super()._load_from_state_dict(state_dict, prefix, *args, **kwargs)

    def queries_keys(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Queries and keys before norm and rotation: ``[B, T, heads, D]``, or with several maps
        ``[B, T, heads, maps, D]``."""
        pairs = ((self.q_proj(x), self.query_maps), (self.k_proj(x), self.key_maps))
        q, k = (
            y.unflatten(-1, (-1, self.head_dim) if maps == 1 else (-1, maps, self.head_dim))
            for y, maps in pairs
        )
        return q, k

    def lambdas(self, x: Tensor) -> tuple[Tensor, ...]:
        """λ in a tuple of one, the operator's fourth argument; an empty tuple without λ."""
        return ()

    def forward(
        self,
        x: Tensor,
        position_embeddings: tuple[Tensor, Tensor] | None = None,
        *,
        attend: Callable[..., Tensor] | None = None,
    ) -> Tensor:
        """Attend from every token of ``x``.

        Args:
            x: ``[B, T, hidden_size]``, already normalised.
            position_embeddings: cos and sin of :func:`diffattn.rotary_embedding`, or ``None``
                for no position information.
            attend: Called as ``attend(q, k, v, lam)``, by softmax layers without ``lam``. Bind
                masks or a cache here, for example
                ``functools.partial(diff_attention, key_padding_mask=mask)``. λ is float32. V2
                passes keys ``[B, T, Hkv, D]`` and λ ``[B, T, H]``. Default: the layer's operator.

        Returns:
            ``[B, T, hidden_size]``, dtype of ``x``; under autocast, autocast's dtype.
        """
        q, k = self.queries_keys(x)
        q, k = self.q_norm(q), self.k_norm(k)
        v = self.v_proj(x).unflatten(-1, (-1, self.value_dim))
        if position_embeddings is not None:
            q, k = rotate_both(q, k, *position_embeddings)
        out = (attend or self.operator)(q, k, v, *self.lambdas(x))  # [B, T, H, Dv]
        return self.o_proj(self.head_norm(out).flatten(2))


class SoftmaxAttention(AttentionLayer):
    r"""Multi-head softmax attention.

    .. math:: Y = \mathrm{Concat}(\mathrm{softmax}(s Q_i K_i^\top) V_i)\,W^O

    Arguments are those of :class:`AttentionLayer`. With ``head_norm``
    the layer is the "+ GroupNorm" ablation of the DIFF Transformer paper.

    Source: arXiv:1706.03762, section 3.2.2.
    """

    operator = staticmethod(softmax_attention)
