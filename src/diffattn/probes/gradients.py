"""Sizes of the gradients and updates of a model's matrices in one training step."""

from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from diffattn.layers.parts import HeadNorm
from diffattn.models.modeling_diff_transformer import DiffTransformerForCausalLM

MATRICES = ("q", "k", "v", "o")
"""W_Q, W_K, W_V, W_O; for Shared DIFF, W_Q and W_K are the base that both maps share."""
MAPS = ("q1", "q2", "k1", "k2")
"""Parts of W_Q and W_K for each map, in types whose maps do not share them."""


class GradientProbe:
    r"""Measures one optimizer step from inside, without changing it.

    Call :meth:`begin` before the forward pass, :meth:`before_step` after the backward pass, and
    :meth:`after_step` after the optimizer step. For a matrix W with gradient g (before clipping)
    that a step with learning rate η and weight decay w changes to W′, it measures

    .. math:: u = \frac{(1 - \eta w) W - W'}{\eta},\quad
              \mathrm{RMS}(g),\quad \mathrm{RMS}(u),\quad \langle g, u \rangle

    u is the update that the optimizer makes of the gradient. With AdamW its entries have size 1
    where the gradient keeps its sign over steps, and less where it does not, for gradients of any
    size. ⟨g, u⟩ is the decrease of the loss per unit of learning rate, to first order.

    Source: arXiv:2410.05258v2, Appendix G.
    """

    def __init__(self, model: DiffTransformerForCausalLM) -> None:
        self.layers: list[Any] = list(model.model.layers)
        self.heads: list[dict[str, float]] = [{} for _ in self.layers]
        self.hooks: list[Any] = []
        self.before: dict[nn.Parameter, Tensor] = {}

    def begin(self) -> None:
        """Record the inputs of the head norms in the next forward pass."""
        self.hooks = [
            layer.self_attn.head_norm.register_forward_hook(partial(_measure_heads, row))
            for layer, row in zip(self.layers, self.heads, strict=True)
        ]

    def end(self) -> None:
        """Remove the hooks of :meth:`begin`."""
        for hook in self.hooks:
            hook.remove()
        self.hooks = []

    @torch.no_grad()
    def before_step(self, optimizer: torch.optim.Optimizer, clipped_by: float) -> None:
        """Save weights and settings; clipping has multiplied the gradients by ``clipped_by``."""
        self.end()
        self.unclipped = 1.0 / clipped_by
        self.rate = float(optimizer.param_groups[0]["lr"])
        groups = optimizer.param_groups
        self.decay = {p: group["weight_decay"] for group in groups for p in group["params"]}
        parts = [part for layer in self.layers for part in _matrices(layer).values()]
        self.before = {p: p.detach().clone() for matrices in parts for p in matrices}

    @torch.no_grad()
    def after_step(self) -> list[dict[str, Any]]:
        """One row per layer: matrix -> ``gradient`` RMS(g), ``update`` RMS(u) and ``slope`` ⟨g, u⟩;
        parts of :data:`MAPS` -> the first two; ``head_rms``, the median RMS of a head before its
        norm; and with a head norm ``norm_gain``, by which it multiplies a head of median size."""
        rows = []
        for layer, heads in zip(self.layers, self.heads, strict=True):
            row: dict[str, Any] = {}
            for name, matrices in _matrices(layer).items():
                g = [self.unclipped * p.grad.double() for p in matrices if p.grad is not None]
                u = [self._update(p) for p in matrices]
                row[name] = {"gradient": _rms(g), "update": _rms(u)}
                row[name]["slope"] = float(sum((a * b).sum() for a, b in zip(g, u, strict=True)))
                if name in ("q", "k") and _has_two_maps(layer.self_attn, name, matrices):
                    shape = (-1, 2, layer.self_attn.head_dim)
                    for index in (1, 2):
                        g_map, u_map = (x[0].unflatten(0, shape)[:, index - 1] for x in (g, u))
                        row[f"{name}{index}"] = {"gradient": _rms([g_map]), "update": _rms([u_map])}
            rows.append(row | heads)
        self.before = {}
        return rows

    def _update(self, p: nn.Parameter) -> Tensor:
        """u, in float64: in float32 the small difference of the weights would be inexact."""
        kept = (1.0 - self.rate * self.decay[p]) * self.before[p].double()
        return (kept - p.detach().double()) / self.rate


def _matrices(layer: Any) -> dict[str, list[nn.Parameter]]:
    """The trained matrices of every projection, which may be any module, like an adapter."""
    parts = {name: getattr(layer.self_attn, f"{name}_proj") for name in MATRICES}
    parts["ffn"] = layer.mlp  # all its matrices, as a comparison: they are the same in all types
    return {
        name: matrices
        for name, part in parts.items()
        if (matrices := [p for p in part.parameters() if p.ndim == 2 and p.requires_grad])
    }


def _has_two_maps(attention: Any, name: str, matrices: list[nn.Parameter]) -> bool:
    """Whether a projection is a single matrix with rows ``[heads, 2, D]``."""
    maps, heads = attention.query_maps, attention.num_heads
    if name == "k":
        maps, heads = attention.key_maps, attention.num_kv_heads
    return maps == 2 and [len(p) for p in matrices] == [2 * heads * attention.head_dim]


def _rms(parts: list[Tensor]) -> float:
    squares = sum(float(x.square().sum()) for x in parts)
    return float((squares / sum(x.numel() for x in parts)) ** 0.5)


def _measure_heads(
    row: dict[str, float], module: Any, inputs: tuple[Tensor, ...], output: Tensor
) -> None:
    """Medians over tokens and heads, as the first token, which sees only itself, is an outlier."""
    row.clear()
    mean_square = inputs[0].detach().float().square().mean(-1)
    row["head_rms"] = float(mean_square.sqrt().median())
    if isinstance(module, HeadNorm):
        gain = module.factor / (mean_square + module.eps).sqrt().median()
        if module.weight is not None:
            gain = gain * module.weight.detach().float().square().mean().sqrt()
        row["norm_gain"] = float(gain)
