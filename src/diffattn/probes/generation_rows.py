"""Attention rows of chosen tokens behind a cache: no square map is ever made."""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from transformers.cache_utils import Cache

from diffattn.errors import ConfigError
from diffattn.ops.lambda_param import diff_lambda


@dataclass(frozen=True, kw_only=True, slots=True)
class LayerRows:
    """Rows of one layer, ``[H, T, S]`` over output heads; float32, or float64 in such models."""

    map_1: Tensor
    """A1: what is added."""
    acting: Tensor
    """What multiplies the values: A1 − λA2; for softmax attention A1 itself."""


@torch.no_grad()
def generation_rows(network: Any, cache: Cache, ids: Tensor) -> list[LayerRows]:
    """Read more tokens and keep their attention rows.

    Memory is that of ``len(ids)`` rows; hand in few tokens at a time.

    Source: arXiv:2410.05258v2, Eq. (1).

    Args:
        network: A causal language model, ours or Hugging Face's (DiffLlama included), whose
            attention implementation returns weights (``"diffattn"`` or ``"eager"``).
        cache: Of the tokens before; extended in place.
        ids: int64 ``[1, T]``.

    Returns:
        One entry per layer; keys are the tokens before and these, zero for later ones.

    Raises:
        ConfigError: The model returns no attention weights.
    """
    kind = network.config.model_type
    more = {"output_attention_maps": True} if kind == "diff_transformer" else {}
    out = network(
        input_ids=ids, past_key_values=cache, use_cache=True, output_attentions=True,
        logits_to_keep=1, **more,
    )  # fmt: skip
    weights = out.attentions
    if not weights or any(layer is None for layer in weights):
        raise ConfigError(f"generation_rows: {kind} must return attention weights, got none.")
    if more:
        maps = [layer[0, :, 0] for layer in out.attention_maps]
        return [_rows(map_1, one[0]) for map_1, one in zip(maps, weights, strict=True)]
    if kind == "diffllama":
        layers = network.model.layers
        return [_pairs(layer.self_attn, one[0]) for layer, one in zip(layers, weights, strict=True)]
    return [_rows(one[0], one[0]) for one in weights]


def _pairs(attention: Any, weights: Tensor) -> LayerRows:
    """DiffLlama returns the weights of every map: those added first, then those subtracted."""
    map_1, map_2 = _wide(weights).chunk(2)
    lam = diff_lambda(
        attention.lambda_q1, attention.lambda_k1, attention.lambda_q2, attention.lambda_k2,
        attention.lambda_init,
    )  # fmt: skip
    return _rows(map_1, map_1 - lam * map_2)


def _rows(map_1: Tensor, acting: Tensor) -> LayerRows:
    return LayerRows(map_1=_wide(map_1), acting=_wide(acting))


def _wide(x: Tensor) -> Tensor:
    return x if x.dtype == torch.float64 else x.float()
