"""Attention maps of a few query rows over a long context, for any causal language model."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from diffattn.errors import ConfigError, ShapeError
from diffattn.models.modeling_diff_transformer import DiffTransformerForCausalLM
from diffattn.ops.lambda_param import diff_lambda

_WITH_MAPS = ("diffattn", "eager")


@dataclass(frozen=True, kw_only=True, slots=True)
class LayerRows:
    """What some queries attend to in one layer; ``H`` heads, ``T`` queries, ``S`` keys."""

    maps: Tensor
    """``[H, maps, T, S]``: the softmax map, or A1 and A2."""
    signed: Tensor
    """``[H, T, S]``: A1 − λ A2, whose rows sum to 1 − λ; the map itself for softmax attention."""


@torch.no_grad()
def attention_rows(network: Any, input_ids: Tensor, past_key_values: Any = None) -> list[LayerRows]:
    r"""The attention of the last tokens of a sequence, and of no others.

    .. math:: A = A_1 - \lambda A_2

    What comes before is read into a cache first, so that memory grows with rows times keys, never
    with the square of the length. Models of ours give both maps themselves. DiffLlama gives one
    softmax map per query head: the first half of its heads are A1, the second half A2, and λ is
    that of its layer. Other models give their softmax map; they run as ``"eager"`` meanwhile.

    Source: arXiv:2410.05258v2, Eq. (1); transformers, ``modeling_diffllama.py``.

    Args:
        network: A Hugging Face causal language model, in evaluation mode.
        input_ids: int64 ``[1, T]``, the tokens whose rows are wanted.
        past_key_values: Cache of all tokens before them; it is extended. Default: there are none.

    Returns:
        One entry per layer, in the model's order; float32 or float64, on its device.

    Raises:
        ShapeError: ``input_ids`` is not one row of one token or more.
        ConfigError: The model gives no maps, or not over all keys (a sliding window).
    """
    if input_ids.ndim != 2 or len(input_ids) != 1 or not input_ids.numel():
        raise ShapeError(f"attention_rows: input_ids must be [1, T], got {list(input_ids.shape)}.")
    seen = 0 if past_key_values is None else past_key_values.get_seq_length()
    ours = isinstance(network, DiffTransformerForCausalLM)
    options: dict[str, Any] = {"output_attention_maps": True} if ours else {}
    with _maps_available(network):
        output = network(
            input_ids=input_ids,
            past_key_values=past_key_values,
            use_cache=past_key_values is not None,
            output_attentions=True,
            logits_to_keep=1,
            **options,
        )
    attentions = output.attentions
    name = type(network).__name__
    if not attentions or any(x is None for x in attentions):
        raise ConfigError(f"attention_rows: {name} must return attention maps, got none.")
    wanted = (input_ids.shape[1], seen + input_ids.shape[1])
    for x in attentions:
        if tuple(x.shape[-2:]) != wanted:
            raise ConfigError(
                f"attention_rows: maps of {name} must be {list(wanted)} (queries, keys), "
                f"got {list(x.shape[-2:])}. Sliding windows are not supported."
            )
    if ours:
        pairs = zip(output.attention_maps, attentions, strict=True)
        return [LayerRows(maps=_wide(maps[0]), signed=_wide(x[0])) for maps, x in pairs]
    if network.config.model_type == "diffllama":
        layers = [layer.self_attn for layer in network.model.layers]
        return [_diffllama(x[0], layer) for x, layer in zip(attentions, layers, strict=True)]
    return [LayerRows(maps=_wide(x[0])[:, None], signed=_wide(x[0])) for x in attentions]


def _diffllama(weights: Tensor, layer: Any) -> LayerRows:
    """Both maps of every pair of heads: head i and head i + H."""
    maps = torch.stack(_wide(weights).chunk(2, dim=0), dim=1)  # [H, 2, T, S]
    lam = diff_lambda(
        layer.lambda_q1, layer.lambda_k1, layer.lambda_q2, layer.lambda_k2, layer.lambda_init
    )
    return LayerRows(maps=maps, signed=maps[:, 0] - lam * maps[:, 1])


def _wide(x: Tensor) -> Tensor:
    """float32, or float64 as it is."""
    return x if x.dtype == torch.float64 else x.float()


@contextmanager
def _maps_available(network: Any) -> Iterator[None]:
    """Run under an implementation that returns maps; few rows make even eager cheap."""
    before = network.config._attn_implementation
    if before in _WITH_MAPS:
        yield
        return
    network.set_attn_implementation("eager")
    try:
        yield
    finally:
        network.set_attn_implementation(before)
