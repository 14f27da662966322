"""Shared DIFF attention: one base projection for both maps, and a low-rank update for each."""

from typing import Any

import torch
from torch import Tensor, nn

from diffattn.errors import ConfigError
from diffattn.layers.diff_attention import DiffAttention


class SharedDiffAttention(DiffAttention):
    r"""Differential attention whose maps share their projections up to a low-rank update.

    .. math:: Q_i = X (W_Q + U_{q_i} Z_{q_i}^\top),\quad K_i = X (W_K + U_{k_i} Z_{k_i}^\top)

    Everything after the projections is V1. The paper publishes neither rank nor initialisation.
    Here U starts like any projection and Z from N(0, 1/r), so each update is as large as the base
    and the two maps differ from the first step. (With equal maps the head norm would cancel λ, and
    λ's gradient would be 0.) Training never forms ``W + U Zᵀ``; :meth:`fold` forms it for
    inference. Above ``r = hidden_size * D / (2 (hidden_size + D))`` the layer has more parameters
    than V1.

    Source: arXiv:2501.17900, Shared DIFF attention (Q and K projections).

    Args:
        shared_rank: r, columns of U and Z.
        **options: Keyword arguments of :class:`DiffAttention`.
    """

    q_down_proj: nn.Linear
    k_down_proj: nn.Linear
    q_up: nn.Parameter
    k_up: nn.Parameter

    def __init__(
        self, hidden_size: int, num_heads: int, head_dim: int, *, shared_rank: int, **options: Any
    ) -> None:
        if shared_rank < 1:
            raise ConfigError(
                f"SharedDiffAttention: shared_rank must be 1 or more, got {shared_rank}."
            )
        self.shared_rank = shared_rank
        super().__init__(hidden_size, num_heads, head_dim, **options)

    def _make_query_key_projections(self) -> None:
        rank, width = self.shared_rank, self.head_dim
        for name, heads in (("q", self.num_heads), ("k", self.num_kv_heads)):
            base = nn.Linear(self.hidden_size, heads * width, bias=self.qkv_bias)
            self.add_module(f"{name}_proj", base)
            down = nn.Linear(self.hidden_size, heads * 2 * rank, bias=False)
            self.add_module(f"{name}_down_proj", down)  # U of both maps
            up = torch.normal(0.0, rank**-0.5, (heads, 2, width, rank))
            self.register_parameter(f"{name}_up", nn.Parameter(up))  # Z of both maps

    def queries_keys(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Queries ``[B, T, H, 2, D]`` and keys ``[B, T, Hkv, 2, D]`` of both maps, unrotated."""
        q = self._project(self.q_proj(x), self.q_down_proj(x), self.q_up)
        k = self._project(self.k_proj(x), self.k_down_proj(x), self.k_up)
        return q, k

    def _project(self, base: Tensor, low: Tensor, up: Tensor) -> Tensor:
        """X W + (X U) Zᵀ for both maps of every head: ``base`` is X W, ``low`` X U, ``up`` Z."""
        heads = up.shape[0]
        base = base.unflatten(-1, (heads, 1, self.head_dim))
        low = low.unflatten(-1, (heads, 2, self.shared_rank))
        return base + torch.einsum("bthmr,hmdr->bthmd", low, up)

    @torch.no_grad()
    def fold(self) -> DiffAttention:
        """The V1 layer that computes the same function, with ``W + U Zᵀ`` formed once.

        It is on the same device, in the same dtype, and shares no memory with this layer. Adapters
        of the projections must be merged first.
        """
        folded = DiffAttention(
            self.hidden_size,
            self.num_heads,
            self.head_dim,
            num_kv_heads=self.num_kv_heads,
            layer_idx=self.layer_idx,
            lambda_init=self.lambda_init,
            head_norm=not isinstance(self.head_norm, nn.Identity),
            head_norm_affine=getattr(self.head_norm, "weight", None) is not None,
            head_norm_eps=getattr(self.head_norm, "eps", 1e-5),
            qkv_bias=self.qkv_bias,
            qk_norm_eps=getattr(self.q_norm, "eps", None),
        ).to(device=self.q_up.device)
        state = {name: value.clone() for name, value in self.state_dict().items()}
        names = ("q", "k", "v", "o", "q_down", "k_down")
        if not state.keys() >= {f"{name}_proj.weight" for name in names}:
            raise ConfigError("fold: adapters of the projections must be merged first.")
        for name in ("q", "k"):
            down, up = state.pop(f"{name}_down_proj.weight"), state.pop(f"{name}_up")
            weight = f"{name}_proj.weight"
            state[weight] = folded_weight(state[weight], down, up)
            if self.qkv_bias:
                bias = f"{name}_proj.bias"
                state[bias] = for_both_maps(state[bias], len(up))
        folded.load_state_dict(state, assign=True)
        return folded.train(self.training)


def folded_weight(base: Tensor, down: Tensor, up: Tensor) -> Tensor:
    """``W + U Zᵀ`` of both maps of every head, in the row order of V1's projection, rounded once.

    Source: arXiv:2501.17900, Shared DIFF attention (Q and K projections).

    Args:
        base: W, ``[heads * D, hidden_size]``.
        down: U of both maps, ``[heads * 2 * r, hidden_size]``.
        up: Z of both maps, ``[heads, 2, D, r]``.

    Returns:
        ``[heads * 2 * D, hidden_size]``, dtype of ``base``; sums in float32, or float64 for
        float64.
    """
    heads, maps, width, rank = up.shape
    wide = torch.promote_types(base.dtype, torch.float32)
    low = down.to(wide).unflatten(0, (heads, maps, rank))
    update = torch.einsum("hmdr,hmrx->hmdx", up.to(wide), low)
    weight = base.to(wide).unflatten(0, (heads, 1, width)) + update
    return weight.flatten(0, 2).to(base.dtype)


def for_both_maps(x: Tensor, heads: int) -> Tensor:
    """Repeat each head's rows of a weight or bias ``[heads * D, ...]``, once for each map."""
    rows = x.unflatten(0, (heads, 1, -1))
    return rows.expand(-1, 2, *rows.shape[2:]).flatten(0, 2)
