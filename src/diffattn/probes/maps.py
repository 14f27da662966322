"""The attention maps of one layer and head on one example."""

from dataclasses import dataclass

import torch
from torch import Tensor

from diffattn.errors import ConfigError, ShapeError
from diffattn.models.modeling_diff_transformer import DiffTransformerForCausalLM


@dataclass(frozen=True, kw_only=True, slots=True)
class ExampleMaps:
    """Maps ``[T, T]`` of one head, float32."""

    layer: int
    head: int
    map_1: Tensor
    map_2: Tensor | None
    """``None`` for softmax attention, likewise ``difference``."""
    difference: Tensor | None


@torch.no_grad()
def example_maps(
    model: DiffTransformerForCausalLM, input_ids: Tensor, *, layer: int, head: int
) -> ExampleMaps:
    r"""A1, A2 and A1 − λA2 of one head.

    Source: arXiv:2410.05258v2, Eq. (1).

    Args:
        model: A causal language model of ours.
        input_ids: int64 ``[1, T]``.
        layer: Counted from 0.
        head: Output head, counted from 0.

    Raises:
        ConfigError: The model has no such layer or head.
        ShapeError: ``input_ids`` is not one row.
    """
    for name, index, size in (
        ("layer", layer, model.config.num_hidden_layers),
        ("head", head, model.config.num_heads),
    ):
        if not 0 <= index < size:
            raise ConfigError(f"example_maps: {name} must be from 0 to {size - 1}, got {index}.")
    if input_ids.ndim != 2 or len(input_ids) != 1:
        raise ShapeError(f"example_maps: input_ids must be [1, T], got {list(input_ids.shape)}.")
    was_training = model.training
    try:
        output = model.eval()(
            input_ids.to(model.device),
            use_cache=False,
            output_attentions=True,
            output_attention_maps=True,
        )
    finally:
        model.train(was_training)
    raw = output.attention_maps[layer][0, head].float().cpu()  # [maps, T, T]
    if len(raw) == 1:
        return ExampleMaps(layer=layer, head=head, map_1=raw[0], map_2=None, difference=None)
    difference = output.attentions[layer][0, head].float().cpu()
    return ExampleMaps(layer=layer, head=head, map_1=raw[0], map_2=raw[1], difference=difference)
