"""Start training from given weights, for a stage that continues another run's model."""

import hashlib
from copy import deepcopy
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open

from diffattn.errors import CheckpointError, ConfigError
from diffattn.files.folders import MANIFEST, verify_manifest
from diffattn.files.io import file_hash
from diffattn.lab.data.tokenizer import load_tokenizer, tokenizer_hash
from diffattn.lab.training.config import InitConfig
from diffattn.layers.saved_names import saved_name
from diffattn.models.checkpoint_folder import checkpoint_folder, files_in, weight_files
from diffattn.models.config.settings import OPTIONS
from diffattn.models.configuration_diff_transformer import DiffTransformerConfig
from diffattn.models.folder_check import check_folder, read_object
from diffattn.models.modeling_diff_transformer import DiffTransformerForCausalLM

_FREE = (
    "rope_parameters", "max_position_embeddings", "attention_backend", "use_cache",
    "initializer_range", "depth_scaled_init", "scaled_head_init",
    "pad_token_id", "bos_token_id", "eos_token_id",
)  # fmt: skip
"""Model settings that a next stage may change. All others must equal those of the weights."""


def initial_weights(
    folder: Path, model: DiffTransformerConfig, *, verify: bool = True
) -> InitConfig:
    """Name and hash the weights of a run directory or model folder; refuse another model's.

    RoPE's θ and the longest context may differ, as an extension of the context changes them. All
    other settings that shape the function must be equal, as must names and shapes of parameters.
    """
    place = _model_folder(folder)
    if verify and (place / MANIFEST).exists():
        verify_manifest(place)
    initial = initial_config(folder)
    for key in (*model.settings(), *OPTIONS):
        value, must = getattr(model, key), getattr(initial, key)
        if key not in _FREE and _meaning(model, key) != _meaning(initial, key):
            raise ConfigError(
                f"train: model.{key} must be {must!r} to start from the weights in "
                f"{folder}, got {value!r}."
            )
    files = _weight_files(folder)
    _require_parameters(folder, files, model)
    weights, *others = (file_hash(path) for path in files)
    if others:
        weights = hashlib.sha256("\n".join([weights, *others]).encode()).hexdigest()
    return InitConfig(folder=str(folder), weights=weights)


def _meaning(model: DiffTransformerConfig, key: str) -> Any:
    """A setting with its default spelled out."""
    if key == "head_norm":
        return model.uses_head_norm
    if key == "lambda_init" and model.uses("lambda_vectors"):
        return [model.layer_lambda_init(i) for i in range(model.num_hidden_layers)]
    return getattr(model, key)


def initial_model(
    config: DiffTransformerConfig, init: InitConfig | None
) -> DiffTransformerForCausalLM:
    """A model with fresh weights by torch's seed, or with the weights that ``init`` names."""
    model = DiffTransformerForCausalLM(deepcopy(config))
    parameters = {saved_name(name): x for name, x in model.named_parameters()}
    for path in [] if init is None else _weight_files(init.folder):
        with safe_open(path, "pt") as tensors:
            for name in tensors.keys():  # noqa: SIM118 - the file is no mapping
                parameters[name].data.copy_(tensors.get_tensor(name))
    return model


def require_same_tokenizer(init: InitConfig, tokenizer: Any) -> None:
    """Refuse data whose tokenizer differs from the weights' tokenizer, if their folder has one."""
    place = _model_folder(init.folder)
    if not (place / "tokenizer.json").exists():
        return
    if tokenizer_hash(load_tokenizer(str(place.absolute()))) != tokenizer_hash(tokenizer):
        raise ConfigError(
            "train: the data's tokenizer must be that of the weights to start from, got another "
            f"one than in {init.folder}. Pack with --tokenizer {place}."
        )


def _model_folder(folder: Path | str) -> Path:
    place = checkpoint_folder(str(folder))
    if not place.is_dir():
        raise CheckpointError(
            f"train: --init-from must be a folder, got {str(folder)!r}. "
            "Save a model of the hub with save_pretrained first."
        )
    return place


def initial_config(folder: Path) -> DiffTransformerConfig:
    """The configuration of the model in a folder, in float32 as all training."""
    place = _model_folder(folder)
    settings = read_object(f"{folder}/config.json", place / "config.json")
    if settings.get("model_type") != DiffTransformerConfig.model_type:
        raise ConfigError(
            f"train: --init-from must name a model of type {DiffTransformerConfig.model_type!r}, "
            f"got {settings.get('model_type')!r} in {folder}."
        )
    check_folder(str(folder), str(place), files_in(place))
    return DiffTransformerConfig(**DiffTransformerConfig.from_pretrained(place).settings())


def _weight_files(folder: Path | str) -> list[Path]:
    files = weight_files(str(folder), files_in(_model_folder(folder)))
    if not files:
        raise CheckpointError(f"{folder}: must hold weights (model.safetensors), got none.")
    return list(files.values())


def _require_parameters(
    folder: Path | str, files: list[Path], config: DiffTransformerConfig
) -> None:
    """Refuse files whose tensors are not exactly a model's parameters."""
    held: dict[str, list[int]] = {}
    for path in files:
        with safe_open(path, "pt") as tensors:
            names = tensors.keys()
            held |= {name: tensors.get_slice(name).get_shape() for name in names}
    with torch.device("meta"):
        model = DiffTransformerForCausalLM(deepcopy(config))
    needed = {saved_name(name): list(x.shape) for name, x in model.named_parameters()}
    for name in sorted(needed.keys() | held.keys()):
        must, got = needed.get(name), held.get(name)
        if must != got:
            raise ConfigError(
                f"train: the weights in {folder} must hold {name} as {must or 'none'}, "
                f"got {got or 'none'}."
            )
