"""Sizes of the activations, attention logits, λ and residual stream of a running model."""

import math
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from diffattn.layers.parts import LAMBDA_NAMES
from diffattn.models.modeling_diff_transformer import DiffTransformerForCausalLM
from diffattn.ops.inputs.formulas import diff_lambda
from diffattn.probes.passes import (
    evaluating,
    pieces,
    root_mean_square,
    run_windows,
    watch_attention,
)

_BLOCK_ENTRIES = 2**24
"""Number of attention logits that are in memory at a time."""


def layer_activations(
    model: DiffTransformerForCausalLM,
    input_ids: Tensor,
    position_ids: Tensor | None = None,
    *,
    at_once: int | None = None,
) -> list[dict[str, float]]:
    r"""Sizes of the activations of each layer in a forward pass.

    The context RMS is the root mean square of the attention output before head norm and projection,

    .. math:: \mathrm{RMS}(c) = \sqrt{\frac{1}{D_v} \lVert c \rVert^2},\quad c = \sum_j a_j v_j,

    here over all queries and heads. With softmax weights and n uncorrelated values of RMS 1 it is
    in :math:`[1/\sqrt n, 1)`. The difference of two maps can make it 0.

    Source: DIFF V2 note (January 2026), Context RMS.

    Args:
        input_ids: int64 ``[B, T]``.
        position_ids: int64 ``[B, T]`` that begin again at 0 with each document, to keep documents
            apart. Default: a window is one document.
        at_once: Windows per forward pass. Default: all.

    Returns:
        Per layer ``hidden_max``, the largest absolute entry of the residual stream after it. If it
        has attention, also ``logit_max``, the largest absolute attention logit of a visible key,
        ``context_rms`` and ``value_rms``. If the operator gets a λ, also ``lam``, its mean over
        tokens and heads, ``lam_min`` and ``lam_max``.
    """
    sizes: list[dict[str, float]] = [{} for _ in model.model.layers]
    for share, ids, positions in pieces(input_ids, position_ids, at_once):
        for whole, part in zip(sizes, _activations(model, ids, positions), strict=True):
            for name, value in part.items():
                if name.endswith("_rms"):
                    whole[name] = whole.get(name, 0.0) + share * value**2
                elif name == "lam":
                    whole[name] = whole.get(name, 0.0) + share * value
                else:  # NaN stays: it must end a run
                    extreme = np.minimum if name == "lam_min" else np.maximum
                    whole[name] = float(extreme(whole.get(name, value), value))
    for row in sizes:
        row |= {name: math.sqrt(row[name]) for name in row if name.endswith("_rms")}
    return sizes


@torch.no_grad()
def _activations(
    model: DiffTransformerForCausalLM, input_ids: Tensor, position_ids: Tensor | None
) -> list[dict[str, float]]:
    blocks: list[Any] = list(model.model.layers)
    rows: list[dict[str, float]] = [{} for _ in blocks]

    def measure_output(row: dict[str, float], module: nn.Module, x: Any, output: Tensor) -> None:
        row["hidden_max"] = float(output.abs().amax())

    def measure_attention(
        row: dict[str, float], operator: Callable[..., Tensor], *tensors: Tensor
    ) -> Tensor:
        q, k, v, *lam = tensors
        # A packed row [1, B * T, ...] becomes windows [B, T, ...] again.
        queries, keys = (x.reshape(*input_ids.shape, *x.shape[2:]) for x in (q, k))
        row["logit_max"] = largest_logit(queries, keys, position_ids)
        row["value_rms"] = root_mean_square(v)
        if lam:
            low, high = map(float, lam[0].aminmax())
            row |= {"lam": float(lam[0].mean()), "lam_min": low, "lam_max": high}
        out = operator(*tensors)
        row["context_rms"] = root_mean_square(out)
        return out

    hooks = []
    for row, block in zip(rows, blocks, strict=True):
        hooks.append(block.register_forward_hook(partial(measure_output, row)))
        hooks.append(watch_attention(block.self_attn, partial(measure_attention, row)))
    with evaluating(model, *hooks):
        run_windows(model, input_ids, position_ids)
    return rows


def largest_logit(q: Tensor, k: Tensor, position_ids: Tensor | None = None) -> float:
    r"""The largest :math:`|s\,q_i \cdot k_j|` of a key that the query sees, :math:`j \le i`.

    Args:
        q: ``[B, T, H, 2, D]``, or without the map axis, as the operator takes it.
        k: ``[B, T, Hkv, 2, D]``, or without the map axis.
        position_ids: int64 ``[B, T]`` that begin again at 0 with each document: a query sees only
            its own document. Default: a row is one document.
    """
    q, k = (x if x.ndim == 5 else x[:, :, :, None] for x in (q.float(), k.float()))
    num_tokens, shared = q.shape[1], q.shape[2] // k.shape[2]
    rows = max(1, _BLOCK_ENTRIES // (len(q) * num_tokens))
    largest = q.new_zeros(())
    places = torch.arange(num_tokens, device=q.device)
    begins = None if position_ids is None else places - position_ids.to(q.device)  # [B, T]
    for head in range(q.shape[2]):
        for number in range(q.shape[3]):
            # [B, T, D]; V2's two maps share their keys.
            queries = q[:, :, head, number] * q.shape[-1] ** -0.5
            keys = k[:, :, head // shared, min(number, k.shape[3] - 1)]
            for start in range(0, num_tokens, rows):
                logits = queries[:, start : start + rows] @ keys.mT  # [B, rows, T]
                if begins is not None:
                    earlier = places < begins[:, start : start + rows, None]  # [B, rows, T]
                    logits = logits.masked_fill(earlier, 0.0)
                largest = torch.maximum(largest, logits.tril(start).abs().amax())
    return float(largest)


@torch.no_grad()
def residual_writes(model: DiffTransformerForCausalLM, input_ids: Tensor) -> list[dict[str, float]]:
    r"""Root mean squares over tokens and channels, one row per layer.

    At the start of training attention is nearly uniform and adds about the same vector to every
    token. If this vector is larger than the stream, it hides which token was read.

    Returns per layer ``stream``, the input of the block; ``attention``, the attention output;
    ``between``, the sum of both; and ``feed_forward``, the output of the FFN.
    """
    rows: list[dict[str, float]] = []

    def read(name: str, module: nn.Module, inputs: tuple[Tensor, ...], output: Tensor) -> None:
        if name == "stream":
            rows.append({})
        # The inputs of the two norms are the stream before attention and before the FFN.
        is_norm = name in ("stream", "between")
        rows[-1][name] = root_mean_square(inputs[0] if is_norm else output)

    blocks: list[Any] = list(model.model.layers)
    hooks = [
        module.register_forward_hook(partial(read, name))
        for block in blocks
        for name, module in (
            ("stream", block.input_layernorm),
            ("attention", block.self_attn),
            ("between", block.post_attention_layernorm),
            ("feed_forward", block.mlp),
        )
    ]
    with evaluating(model, *hooks):
        run_windows(model, input_ids)
    return rows


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
        position_ids: As in :func:`layer_activations`, likewise ``at_once``.
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
