"""λ of every layer of a running model: its mean, its range, and statistics per head."""

import math
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from diffattn.layers.lambda_vectors import LAMBDA_NAMES
from diffattn.models.modeling_diff_transformer import DiffTransformerForCausalLM
from diffattn.ops.inputs.formulas import diff_lambda
from diffattn.probes.passes import evaluating, pieces, run_windows


@torch.no_grad()
def layer_lambdas(
    model: DiffTransformerForCausalLM,
    input_ids: Tensor,
    position_ids: Tensor | None = None,
    *,
    at_once: int | None = None,
) -> list[float] | None:
    """One λ per layer, or ``None`` if no layer learns a λ.

    Types with λ vectors (V1, Shared DIFF): the layer's λ. Types with a λ projection (V2, gated):
    the mean over tokens and heads; a gate is 1 − λ. A layer without a learned λ has 0.

    Source: arXiv:2410.05258v2, Eq. (2); DIFF V2 note (January 2026) for V2.

    Args:
        input_ids: int64 ``[B, T]``, used only if a layer has a λ projection.
        position_ids: int64 ``[B, T]`` that begin again at 0 with each document, to keep documents
            apart. Default: a window is one document.
        at_once: Windows per forward pass. Default: all.
    """
    layers: list[Any] = [block.self_attn for block in model.model.layers]
    of_layers = model.config.attention_by_layer
    if not any(facts.lambda_vectors or facts.lambda_projection for facts in of_layers):
        return None
    totals = [
        float(layer.lam()) if facts.lambda_vectors else 0.0
        for layer, facts in zip(layers, of_layers, strict=True)
    ]
    means: dict[int, float] = {}  # layer -> mean λ in the present piece

    def read(number: int, module: nn.Module, inputs: tuple[Tensor, ...], logits: Tensor) -> None:
        means[number] = float(layers[number].lambda_of(logits).mean())

    hooks = [
        layers[number].lambda_proj.register_forward_hook(partial(read, number))
        for number, facts in enumerate(of_layers)
        if facts.lambda_projection
    ]
    with evaluating(model, *hooks):
        for share, ids, positions in pieces(input_ids, position_ids, at_once) if hooks else ():
            run_windows(model, ids, positions)
            for number, mean in means.items():
                totals[number] += share * mean
    return totals


def diffllama_lambda(layer: Any) -> Tensor:
    """λ of one attention layer of transformers' DiffLlama, ``[]``."""
    q1, k1, q2, k2 = (getattr(layer, name) for name in LAMBDA_NAMES)
    return diff_lambda(q1, k1, q2, k2, layer.lambda_init)


class LambdaStatistics:
    """Statistics of one layer's λ per head, over the tokens of any number of texts."""

    def __init__(self, num_heads: int) -> None:
        self.tokens = 0
        self.sums = torch.zeros(2, num_heads, dtype=torch.float64)
        self.least = torch.full((num_heads,), math.inf, dtype=torch.float64)
        self.most = -self.least
        self.outside = torch.zeros(2, num_heads, dtype=torch.int64)

    def add(self, lam: Tensor) -> None:
        """Add λ of some tokens, ``[T, H]``."""
        lam = lam.double().cpu()
        self.tokens += len(lam)
        self.sums += torch.stack([lam.sum(0), lam.square().sum(0)])
        low, high = lam.aminmax(dim=0)
        self.least, self.most = torch.minimum(self.least, low), torch.maximum(self.most, high)
        self.outside += torch.stack([(lam < 0).sum(0), (lam > 1).sum(0)])

    def result(self) -> dict[str, Any]:
        """Per head ``mean``, ``std`` (over tokens), ``min``, ``max``, and the shares of tokens with
        λ ``below_0`` and ``above_1``; ``lam`` is the mean over heads and tokens.
        """
        mean, square = self.sums / self.tokens
        spread = (square - mean.square()).clamp(min=0)
        # If λ is the same for every token, the computed variance is only rounding error.
        spread = spread.masked_fill(spread <= 1e-14 * square, 0)
        below, above = (self.outside.double() / self.tokens).tolist()
        return {
            "lam": float(mean.mean()),
            "mean": mean.tolist(),
            "std": spread.sqrt().tolist(),
            "min": self.least.tolist(),
            "max": self.most.tolist(),
            "below_0": below,
            "above_1": above,
        }
