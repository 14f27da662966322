"""Express our model in another layout: names, order of rows and ``config.json``."""

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from transformers import DiffLlamaConfig

from diffattn.errors import ConfigError
from diffattn.models.config.settings import OPTIONS
from diffattn.models.configuration_diff_transformer import DiffTransformerConfig
from diffattn.models.conversion.layouts import LAMBDAS, LAYOUTS, Layout
from diffattn.models.conversion.our_model import (
    OurModel,
    fold,
    multiply,
    our_parameters,
    reordered,
    rows_from_ours,
)
from diffattn.models.conversion.settings_of import SHARED_FIELDS
from diffattn.models.conversion.source import LazyTensor, derive


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
