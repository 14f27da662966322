"""The form between source and target of a conversion: our settings, and tensors by role.

A target has other names, another order of rows and another ``config.json``.
"""

import json
from collections.abc import Callable, Mapping
from copy import deepcopy
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from transformers import DiffLlamaConfig

from diffattn.errors import ConfigError
from diffattn.layers.diff_attention import DiffAttention
from diffattn.layers.saved_names import saved_name
from diffattn.layers.shared_diff_attention import SharedDiffAttention, folded_weight, for_both_maps
from diffattn.models.config.settings import OPTIONS
from diffattn.models.configuration_diff_transformer import DiffTransformerConfig
from diffattn.models.conversion.layouts import LAMBDAS, LAYOUTS, OUR_ENDINGS, Layout, Pairs, Rope
from diffattn.models.conversion.settings_of import SHARED_FIELDS, motif_settings, settings_of
from diffattn.models.conversion.source import LazyTensor, Source, Weights, derive, open_source
from diffattn.models.decoder_block import build_attention
from diffattn.models.modeling_diff_transformer import DiffTransformerForCausalLM

_CLASS = DiffTransformerForCausalLM.__name__


@dataclass(frozen=True, slots=True)
class OurModel:
    """A DIFF Transformer in our layout."""

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
    """The whole model of a source, in our order. ``changes`` set fields of the configuration."""
    config = DiffTransformerConfig(**settings_of(source, changes))
    config.architectures = [_CLASS]
    parameters = our_parameters(config)
    names = source.names or {role: name for role, (name, _) in parameters.items()}
    weights: Weights = {}
    used = set()
    for role, (_, shape) in parameters.items():
        if role not in names:
            raise source.error(f"must hold {role}, as {source.layout.title} has it", "none")
        outside = role in ("embed", "norm", "head")
        for layer in [None] if outside else range(config.num_hidden_layers):
            name = names[role].format(layer)
            tensor = source.tensor(name, shape)
            used.add(name)
            if role in LAMBDAS and tensor.dtype != torch.float32:
                tensor = derive(Tensor.float, tensor)
            weights[role, layer] = reordered(tensor, role, config, source.layout, rows_to_ours)
    _require_all_used(source, used, names)
    config.dtype = weights["q", 0].dtype
    return OurModel(config, weights)


def reordered(
    tensor: LazyTensor,
    role: str,
    config: DiffTransformerConfig,
    layout: Layout,
    change: Callable[..., Tensor],
) -> LazyTensor:
    """A projection with its rows changed by :func:`rows_to_ours` or :func:`rows_from_ours`."""
    facts, rope = config.attention, layout.rope
    if role == "q":
        heads, maps = config.num_heads, facts.query_maps
    elif role == "k":
        heads, maps = config.num_kv_heads, facts.key_maps
    elif role == "v" and layout.pairs == "split" and facts.value_width == 2:
        heads, maps, rope = config.num_kv_heads, 2, "none"
    else:
        return tensor
    if layout.pairs == "adjacent" and rope != "interleaved":
        return tensor
    return derive(partial(change, heads=heads, maps=maps, pairs=layout.pairs, rope=rope), tensor)


def rows_to_ours(x: Tensor, heads: int, maps: int, pairs: Pairs, rope: Rope) -> Tensor:
    """Rows of a weight or bias ``[heads * maps * D, ...]`` of another layout, in our order."""
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
    return x[rows_to_ours(torch.arange(len(x)), heads, maps, pairs, rope).argsort()]


def _require_all_used(source: Source, used: set[str], names: Mapping[str, str]) -> None:
    """With tied embeddings, an output matrix that equals the embedding is ignored."""
    other = sorted(source.tensors.keys() - used)
    head = names.get("head", OUR_ENDINGS["head"])
    if other == [head]:
        embedding, copy = (source.tensors[name] for name in (names["embed"], head))
        if embedding.shape == copy.shape and torch.equal(embedding.load(), copy.load()):
            return
        must = f"{head} must equal the embedding, as tie_word_embeddings is true"
        raise source.error(must, "other values")
    if other:
        got = f"{other[0]} ({len(other)} such tensors)"
        raise source.error(f"must hold only tensors of {source.layout.title}", got)


def fold(model: OurModel) -> OurModel:
    """Convert Shared DIFF to the V1 model of the same function, with W + U Zᵀ for each map."""
    weights = dict(model.weights)
    for layer in model.layers:
        for role in ("q", "k"):
            down, up = weights.pop((f"{role}_down", layer)), weights.pop((f"{role}_up", layer))
            weights[role, layer] = derive(folded_weight, weights[role, layer], down, up)
            if model.config.qkv_bias:
                repeat = partial(for_both_maps, heads=up.shape[0])
                weights[f"{role}_bias", layer] = derive(repeat, weights[f"{role}_bias", layer])
    settings = model.config.settings() | {"attention_type": "diff", "shared_rank": None}
    return replace(model, config=configure_like(model.config, settings), weights=weights)


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


@torch.no_grad()
def fold_shared(model: DiffTransformerForCausalLM) -> DiffTransformerForCausalLM:
    """The V1 model with projections ``W + U Zᵀ``: more weights, fewer products per token.

    It has the device, dtype and generation settings of ``model``, and shares no memory with it.

    Source: arXiv:2501.17900 (projections); arXiv:2410.05258v2 (V1).
    """
    if model.config.attention_type != "shared_diff":
        raise ConfigError(
            f"fold_shared: model must be of Shared DIFF, got {model.config.attention_type!r}."
        )
    settings = model.config.settings() | {"attention_type": "diff", "shared_rank": None}
    config = DiffTransformerConfig(**settings)
    config._attn_implementation = model.config._attn_implementation
    state = {name: value for name, value in model.state_dict().items() if ".self_attn." not in name}
    for index, block in enumerate(model.model.layers):
        layer = block.self_attn
        assert isinstance(layer, SharedDiffAttention)
        of_layer = layer.fold().state_dict()
        state |= {f"model.layers.{index}.self_attn.{name}": of_layer[name] for name in of_layer}
    folded = DiffTransformerForCausalLM(config).to(model.device, model.dtype)
    folded.load_state_dict(state)
    folded.generation_config = deepcopy(model.generation_config)
    folded.loss_chunk_tokens = model.loss_chunk_tokens
    return folded.train(model.training)


def load_attention_layer(path: str, layer: int) -> DiffAttention:
    """One attention layer of a Motif folder. Whole models do not load: our feed-forward layers
    differ.

    Call the layer with its normalised input, and with :func:`diffattn.rotary_embedding` tables made
    with the folder's ``rope_theta``. It is V1 for Motif-2.6B, a
    :class:`~diffattn.GroupedDiffAttention` for Motif-2-12.7B.

    Raises:
        CheckpointError: The folder holds no Motif model, no such layer, or wrong shapes.
    """
    with open_source(path, "motif") as source:
        config = DiffTransformerConfig(**motif_settings(source))
        if not 0 <= layer < config.num_hidden_layers:
            raise source.error(f"layer must be below {config.num_hidden_layers}", layer)
        with torch.device("meta"):  # wrong sizes in config.json must not allocate memory
            made = build_attention(config, layer)
        names = {OUR_ENDINGS[role]: name.format(layer) for role, name in source.names.items()}
        state = {}
        for key, like in made.state_dict().items():
            tensor = source.tensor(names[saved_name(key)], like.shape)
            state[key] = tensor.load().to(like.dtype if "lambda" in key else tensor.dtype)
    made.load_state_dict(state, assign=True)
    assert isinstance(made, DiffAttention)
    return made.eval()


@dataclass(frozen=True, slots=True)
class Written:
    """A model in the layout of a target."""

    layout: Layout
    tensors: dict[str, LazyTensor]
    write_config: Callable[[Path], None]
    """Writes ``config.json`` into a folder."""
    attention_type: str
    rounded: bool
    """Whether weights were computed and rounded; False if they were only reordered."""
    preserved: bool = True
    """Whether it computes the same function as the source."""


def as_ours(model: OurModel) -> Written:
    """The model in the layout of this package."""
    names = {role: name for role, (name, _) in our_parameters(model.config).items()}
    tensors = _name_tensors(model, names, LAYOUTS["diffattn"])
    kind = model.config.attention_type
    write_config = partial(model.config.save_pretrained, remote_code=True)
    return Written(LAYOUTS["diffattn"], tensors, write_config, kind, rounded=False)


def as_diffllama(model: OurModel) -> Written:
    """The model as Hugging Face DiffLlama, with the head norm's scale in the output projection."""
    model, rounded = _require_v1(model, "diffllama")
    config = model.config
    _require("diffllama", config, head_norm_eps=config.rms_norm_eps)
    layout = LAYOUTS["diffllama"]
    weights = dict(model.weights)
    for layer in model.layers:
        scale = weights.pop(("subln", layer), None)
        if scale is not None and bool((scale.load() != 1).any()):
            weights["o", layer] = derive(_fold_scale, weights["o", layer], scale)
            rounded = True
    tied = config.tie_word_embeddings
    if config.embedding_multiplier != 1:
        if tied:
            weights["head", None] = weights["embed", None]
        weights["embed", None] = multiply(weights["embed", None], config.embedding_multiplier)
        tied, rounded = False, True
    same = (*SHARED_FIELDS, "head_dim", "rope_parameters", "dtype")
    settings = {name: getattr(config, name) for name in same} | {
        "num_attention_heads": 2 * config.num_heads,
        "num_key_value_heads": 2 * config.num_kv_heads,
        "tie_word_embeddings": tied,
        "architectures": ["DiffLlamaForCausalLM"],
    }
    tensors = _name_tensors(OurModel(config, weights), layout.names[0], layout)
    return Written(layout, tensors, DiffLlamaConfig(**settings).save_pretrained, "diff", rounded)


def as_original(model: OurModel) -> Written:
    """The model with the names and order of the published code, V1 or V2, as safetensors."""
    config, rounded = model.config, False
    if config.attention_type == "diff_v2":
        name = "original_v2"
        _require(name, config, lambda_bias=False, head_norm=False)
    else:
        name = "original"
        model, rounded = _require_v1(model, name)
        width = 2 * config.num_heads * config.head_dim
        _require(name, config, head_norm_eps=1e-5, hidden_size=width)
    _require(name, config, embedding_multiplier=1.0)
    layout = LAYOUTS[name]
    facts = {"model_type": layout.model_types[0]} | model.config.settings()
    facts["dtype"] = str(model.dtype).removeprefix("torch.")

    def write_config(folder: Path) -> None:
        (folder / "config.json").write_text(json.dumps(facts, indent=2) + "\n", encoding="utf-8")

    tensors = _name_tensors(model, layout.names[0], layout)
    return Written(layout, tensors, write_config, model.config.attention_type, rounded)


WRITERS = {"diffattn": as_ours, "diffllama": as_diffllama, "original": as_original}
"""Target -> function that expresses a model in that layout."""


def _require_v1(model: OurModel, target: str) -> tuple[OurModel, bool]:
    """The model as V1 with head norm and the paper's λ_init; whether Shared DIFF was folded."""
    shared = model.config.attention_type == "shared_diff"
    if shared:
        model = fold(model)
    config = model.config
    _require(target, config, attention_type="diff", head_norm=True)
    schedule = type(config)(attention_type="diff").layer_lambda_init
    if any(config.layer_lambda_init(layer) != schedule(layer) for layer in model.layers):
        _require(target, config, lambda_init=None)
    return model, shared


def _require(target: str, config: DiffTransformerConfig, **fields: Any) -> None:
    """Raise a ConfigError unless these fields have these values, and options are off."""
    for field, must in (fields | dict.fromkeys(OPTIONS, False)).items():
        value = config.uses_head_norm if field == "head_norm" else getattr(config, field)
        if value != must:
            raise ConfigError(
                f"convert: {field} of a model for {target} must be {must!r}, got {value!r}."
            )


def _name_tensors(
    model: OurModel, names: Mapping[str, str], layout: Layout
) -> dict[str, LazyTensor]:
    tensors = {}
    for layer in (None, *model.layers):
        for role, name in names.items():
            tensor = model.weights.get((role, layer))
            if tensor is None:  # optional, or a role inside the layers while layer is None
                continue
            tensor = reordered(tensor, role, model.config, layout, rows_from_ours)
            if role in LAMBDAS and layout.name == "diffllama":
                # In DiffLlama λ's vectors have the dtype of the weights.
                exact = tensor.load()
                if torch.equal(exact, exact.to(model.dtype).to(exact.dtype)):
                    tensor = derive(partial(Tensor.to, dtype=model.dtype), tensor)
            tensors[name.format(layer)] = tensor
    return tensors


def _fold_scale(o: Tensor, scale: Tensor) -> Tensor:
    """The output projection, its columns multiplied by the scale of the head norm."""
    width = scale.shape[0]
    return (o.unflatten(1, (-1, width)).float() * scale.float()).to(o.dtype).flatten(1)
