"""The form between source and target of a conversion: our settings, and tensors by role."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch
from torch import Tensor

from diffattn.errors import CheckpointError
from diffattn.layers.saved_names import saved_name
from diffattn.layers.shared_diff_attention import folded_weight, for_both_maps
from diffattn.models.configuration_diff_transformer import DiffTransformerConfig
from diffattn.models.conversion.layouts import LAMBDAS, OUR_ENDINGS, Layout, Pairs, Rope
from diffattn.models.conversion.lazy import LazyTensor, Weights, derive
from diffattn.models.conversion.settings_of import settings_of
from diffattn.models.conversion.source import Source
from diffattn.models.modeling_diff_transformer import DiffTransformerForCausalLM

_CLASS = DiffTransformerForCausalLM.__name__
_OUTSIDE_LAYERS = ("embed", "norm", "head")


@dataclass(frozen=True, slots=True)
class OurModel:
    """A DIFF Transformer in our layout; its files may have another layout."""

    config: DiffTransformerConfig
    weights: Weights

    @property
    def dtype(self) -> torch.dtype:
        """Dtype of the projections; λ's vectors are float32."""
        return self.weights["q", 0].dtype

    @property
    def layers(self) -> range:
        """Indices of the layers."""
        return range(self.config.num_hidden_layers)


def our_parameters(config: DiffTransformerConfig) -> dict[str, tuple[str, tuple[int, ...]]]:
    """Role -> name with ``{}`` for the layer, and shape. Read off a one-layer model on ``meta``."""
    one_layer = DiffTransformerConfig(
        **config.settings()
        | {"num_hidden_layers": 1, "lambda_init": 0.5 if config.attention.lambda_vectors else None}
    )
    with torch.device("meta"):
        model = DiffTransformerForCausalLM(one_layer)
    parameters = {}
    for present, parameter in model.named_parameters():
        name = saved_name(present)
        (role,) = (role for role, end in OUR_ENDINGS.items() if f".{name}".endswith(f".{end}"))
        if role == "head" and config.tie_word_embeddings:
            continue
        parameters[role] = (name.replace(".0.", ".{}.", 1), tuple(parameter.shape))
    return parameters


def read_model(source: Source, changes: Mapping[str, Any]) -> OurModel:
    """The whole model of a source, in our order. Tensors are read only when they are written.

    ``changes`` set fields of the configuration.

    Raises:
        CheckpointError: A tensor is missing or unknown, or its shape contradicts the settings.
    """
    config = DiffTransformerConfig(**settings_of(source, changes))
    config.architectures = [_CLASS]
    parameters = our_parameters(config)
    names = source.names or {role: name for role, (name, _) in parameters.items()}
    weights: Weights = {}
    used = set()
    for role, (_, shape) in parameters.items():
        if role not in names:
            raise CheckpointError(
                f"{source.name}: must hold {role}, as {source.layout.title} has it, got none."
            )
        for layer in [None] if role in _OUTSIDE_LAYERS else range(config.num_hidden_layers):
            name = names[role].format(layer)
            tensor = source.tensor(name, shape)
            used.add(name)
            weights[role, layer] = _convert_to_ours(tensor, role, config, source.layout)
    _require_all_used(source, used, names)
    config.dtype = weights["q", 0].dtype
    return OurModel(config, weights)


def _convert_to_ours(
    tensor: LazyTensor, role: str, config: DiffTransformerConfig, layout: Layout
) -> LazyTensor:
    if role in LAMBDAS:
        return derive(Tensor.float, tensor) if tensor.dtype != torch.float32 else tensor
    order = row_order(role, config, layout)
    return tensor if order is None else derive(partial(rows_to_ours, **order), tensor)


def from_ours(
    tensor: LazyTensor, role: str, config: DiffTransformerConfig, layout: Layout
) -> LazyTensor:
    """Reorder the rows of a tensor from our layout to another one."""
    order = row_order(role, config, layout)
    return tensor if order is None else derive(partial(rows_from_ours, **order), tensor)


def row_order(role: str, config: DiffTransformerConfig, layout: Layout) -> dict[str, Any] | None:
    """Arguments of :func:`rows_to_ours` for a projection; ``None`` if the rows stay in order."""
    facts = config.attention
    pairs: Pairs = layout.pairs
    if role == "v" and layout.split_values and facts.value_width == 2:
        return {"heads": config.num_kv_heads, "maps": 2, "pairs": pairs, "rope": "none"}
    if role not in ("q", "k") or (layout.pairs == "adjacent" and layout.rope != "interleaved"):
        return None
    if role == "q":
        heads, maps = config.num_heads, facts.query_maps
    else:
        heads, maps = config.num_kv_heads, facts.key_maps
    return {"heads": heads, "maps": maps, "pairs": pairs, "rope": layout.rope}


def rows_to_ours(x: Tensor, heads: int, maps: int, pairs: Pairs, rope: Rope) -> Tensor:
    """Rows of a weight or bias ``[heads * maps * D, ...]`` of another layout, in our order.

    Args:
        maps: Maps per head, 1 or 2.
        pairs: Order of the maps in the other layout.
        rope: Order of the channels in the other layout; ``"none"`` if they are not rotated.
    """
    width = x.shape[0] // (heads * maps)
    if pairs == "split":
        x = x.unflatten(0, (maps, heads, width)).transpose(0, 1)
    else:
        x = x.unflatten(0, (heads, maps, width))
    if rope == "interleaved":
        x = x.unflatten(2, (width // 2, 2)).transpose(2, 3).flatten(2, 3)
    return x.flatten(0, 2)


def rows_from_ours(x: Tensor, heads: int, maps: int, pairs: Pairs, rope: Rope) -> Tensor:
    """The inverse of :func:`rows_to_ours`."""
    width = x.shape[0] // (heads * maps)
    x = x.unflatten(0, (heads, maps, width))
    if rope == "interleaved":
        x = x.unflatten(2, (2, width // 2)).transpose(2, 3).flatten(2, 3)
    if pairs == "split":
        x = x.transpose(0, 1)
    return x.flatten(0, 2)


def _require_all_used(source: Source, used: set[str], names: Mapping[str, str]) -> None:
    """Raise for unknown tensors. With tied embeddings, an equal output matrix is ignored."""
    other = sorted(source.tensors.keys() - used)
    head = names.get("head", OUR_ENDINGS["head"])
    if other == [head]:
        embedding, copy = (source.tensors[name] for name in (names["embed"], head))
        if embedding.shape == copy.shape and torch.equal(embedding.load(), copy.load()):
            return
        raise CheckpointError(
            f"{source.name}: {head} must equal the embedding, as tie_word_embeddings is true, "
            "got other values."
        )
    if other:
        raise CheckpointError(
            f"{source.name}: must hold only tensors of {source.layout.title}, got {other[0]} "
            f"({len(other)} such tensors)."
        )


def fold(model: OurModel) -> OurModel:
    """Convert Shared DIFF to the V1 model of the same function, with W + U Zᵀ for each map."""
    weights = {key: tensor for key, tensor in model.weights.items() if key[0] not in _LOW_RANK}
    for layer in model.layers:
        for role in ("q", "k"):
            *parts, up = (
                model.weights[name, layer] for name in (role, f"{role}_down", f"{role}_up")
            )
            weights[role, layer] = derive(folded_weight, *parts, up)
            if model.config.qkv_bias:
                bias = model.weights[f"{role}_bias", layer]
                weights[f"{role}_bias", layer] = derive(
                    partial(for_both_maps, heads=up.shape[0]), bias
                )
    settings = model.config.settings() | {"attention_type": "diff", "shared_rank": None}
    return replace(model, config=configure_like(model.config, settings), weights=weights)


_LOW_RANK = ("q_down", "k_down", "q_up", "k_up")


def configure_like(
    config: DiffTransformerConfig, settings: dict[str, Any]
) -> DiffTransformerConfig:
    """A configuration with other settings and the dtype of ``config``."""
    other = DiffTransformerConfig(**settings)
    other.dtype, other.architectures = config.dtype, [_CLASS]
    return other


def multiply(tensor: LazyTensor, factor: float) -> LazyTensor:
    """A tensor times a number, in its own dtype."""
    return tensor if factor == 1 else derive(lambda x: x * factor, tensor)
