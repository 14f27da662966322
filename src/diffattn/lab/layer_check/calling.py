"""Build a user's layer and call it: values of arguments are chosen by the arguments' names."""

import importlib
import inspect
import math
import sys
from collections.abc import Callable
from copy import deepcopy
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from diffattn.errors import ConfigError, did_you_mean, first_line
from diffattn.ops.inputs.formulas import lambda_init, rotary_embedding

HIDDEN, HEADS, LAYER, TOKENS = 64, 4, 2, 9
_ARGUMENTS: dict[str, tuple[str, ...]] = {
    "hidden": (
        "hidden_size", "embed_dim", "d_model", "dim", "dim_model", "embedding_dim", "n_embd",
        "in_channels", "d_in", "dmodel", "model_dim",
    ),
    "heads": ("num_heads", "n_heads", "n_head", "heads", "head_nums", "nhead", "h", "h_head"),
    "kv_heads": ("num_kv_heads", "n_kv_heads", "num_key_value_heads", "n_kv_head"),
    "width": ("head_dim", "d_head", "dim_head", "head_size", "d", "d_k"),
    "layer": ("layer_idx", "depth", "layer_id", "layer_index", "layer", "l"),
    "lambda_init": ("lambda_init", "λinit", "lambda_start", "init_lambda"),
    "rank": ("shared_rank", "rank", "r"),
    "dropout": ("dropout", "attn_drop", "proj_drop", "dropout_rate", "p"),
    "length": ("max_seq_len", "block_size", "context_length", "seq_len", "max_len"),
}  # fmt: skip
_VALUES = {
    "hidden": HIDDEN, "heads": HEADS, "kv_heads": HEADS // 2, "width": HIDDEN // HEADS // 2,
    "layer": LAYER, "lambda_init": lambda_init(LAYER), "rank": 3, "dropout": 0.0, "length": 16,
}  # fmt: skip
_ALWAYS_GIVEN = ("layer", "lambda_init", "dropout", "kv_heads")
"""Meanings of the constructor arguments that get a value even if they have a default."""
GIVEN_LAMBDA = 0.37
"""The value of λ that is passed to a layer whose forward takes λ as an argument."""
_LAMBDA_ARGUMENTS = ("λ", "lam", "lambda_", "lambda_val", "lambd")
_INPUTS = ("q", "k", "v", "query", "key", "value", "queries", "keys", "values", "context")
_MEANING = {name: meaning for meaning, names in _ARGUMENTS.items() for name in names}


@dataclass(frozen=True, kw_only=True, slots=True)
class UserLayer:
    """A layer with its initial weights, float32 and in evaluation mode."""

    layer: nn.Module
    made: str
    """The call that built the layer, or ``"NAME as it is"`` if ``NAME`` was a layer."""
    given: tuple[str, ...]
    """Meanings of the arguments of that call: ``layer`` (the depth), ``lambda_init``, ``heads``."""


def load_layer(path: str) -> UserLayer:
    """Build the layer that ``module:name`` names: a class, a function that returns one, or a layer.

    Arguments without a default, and all for depth, λ_init, dropout and key/value heads, get values.
    """
    module_name, _, name = path.partition(":")
    if not module_name or not name:
        raise ConfigError(f"--layer: must be MODULE:NAME, got {path!r}.")
    sys.path.insert(0, str(Path.cwd()))
    try:
        module = importlib.import_module(module_name.removesuffix(".py"))
    except Exception as error:
        raise ConfigError(
            f"--layer: cannot import {module_name}: {type(error).__name__}: {first_line(error)}."
        ) from error
    finally:
        sys.path.pop(0)
    target = getattr(module, name, None)
    if target is None:
        raise ConfigError(
            f"--layer: {module_name} has no {name!r}.{did_you_mean(name, vars(module))}"
        )
    if isinstance(target, nn.Module):
        return UserLayer(layer=deepcopy(target).float().eval(), made=f"{name} as it is", given=())
    if not callable(target):
        raise ConfigError(
            f"--layer: {name} must be a class, a function or a layer, got {type(target).__name__}."
        )
    return _make(name, target)


def _make(name: str, target: Callable[..., Any]) -> UserLayer:
    arguments: dict[str, Any] = {}
    given = []
    for parameter in inspect.signature(target).parameters.values():
        meaning = _MEANING.get(parameter.name.lower())
        required = parameter.default is parameter.empty and parameter.kind not in (
            parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD,
        )  # fmt: skip
        if meaning is None and required:
            raise ConfigError(
                f"--layer: {name} needs {parameter.name!r}, whose name does not show its value: "
                "name a function without arguments that returns the layer."
            )
        if meaning is not None and (required or meaning in _ALWAYS_GIVEN):
            arguments[parameter.name] = _VALUES[meaning]
            given.append(meaning)
    shown = ", ".join(f"{key}={value:.4g}" for key, value in arguments.items())
    torch.manual_seed(0)
    try:
        layer = target(**arguments)
    except Exception as error:
        raise ConfigError(
            f"--layer: {name}({shown}) raises {type(error).__name__}: {first_line(error)}."
        ) from error
    if not isinstance(layer, nn.Module):
        raise ConfigError(
            f"--layer: {name}({shown}) must return a torch.nn.Module, got {type(layer).__name__}."
        )
    return UserLayer(layer=layer.float().eval(), made=f"{name}({shown})", given=tuple(given))


def call_layer(layer: nn.Module, x: Tensor, width: int, mask: Tensor | None = None) -> Tensor:
    """Output ``[B, T, hidden]`` of the layer for ``x`` of this shape.

    Its first argument and those for queries, keys and values get ``x``. Arguments for rotary
    positions get cos and sin of ``width`` channels, one for λ gets :data:`GIVEN_LAMBDA`, and each
    with "mask" in its name gets ``mask``, a value of :func:`masks_to_try`.
    """
    where = type(layer).__name__
    inputs: list[Tensor] = []
    keywords: dict[str, Any] = {}
    for parameter in inspect.signature(layer.forward).parameters.values():
        name, required = parameter.name, parameter.default is parameter.empty
        if "mask" in name and mask is not None:
            keywords[name] = mask
        elif name in _LAMBDA_ARGUMENTS:
            keywords[name] = GIVEN_LAMBDA
        elif name in ("rel_pos", "position_embeddings", "rotary", "cos_sin"):
            tables = rotary_embedding(torch.arange(x.shape[1])[None], head_dim=width)
            # The original code has one column of cos and sin per pair of channels, others two.
            keywords[name] = [t[0, :, : width // 2] if name == "rel_pos" else t for t in tables]
        elif parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD) or not required:
            continue
        elif not inputs or name in _INPUTS:
            inputs.append(x)
        else:
            raise ConfigError(
                f"{where}.forward: needs {name!r}, whose name does not show its value."
            )
    try:
        out = layer(*inputs, **keywords)
    except Exception as error:
        raise ConfigError(
            f"{where}.forward: must take x of shape {list(x.shape)}, raises "
            f"{type(error).__name__}: {first_line(error)}."
        ) from error
    out = out[0] if isinstance(out, tuple) else out
    if not isinstance(out, Tensor) or out.shape != x.shape:
        got = list(out.shape) if isinstance(out, Tensor) else type(out).__name__
        raise ConfigError(f"{where}.forward: must return {list(x.shape)}, got {got}.")
    return out


def number_of_heads(layer: nn.Module) -> int | None:
    """Number of heads, from an attribute of the layer; ``None`` without such an attribute."""
    values = (getattr(layer, name, None) for name in _ARGUMENTS["heads"])
    return next((value for value in values if isinstance(value, int)), None)


def takes_lambda(layer: nn.Module) -> bool:
    """Whether λ is an argument of the layer's forward."""
    return any(name in _LAMBDA_ARGUMENTS for name in inspect.signature(layer.forward).parameters)


def masks_to_try(layer: nn.Module, tokens: int) -> dict[str, Tensor | None]:
    """Masks by description: ``None`` unless a mask is required, then the usual causal masks."""
    arguments = inspect.signature(layer.forward).parameters.items()
    defaults = [argument.default for name, argument in arguments if "mask" in name]
    masks: dict[str, Tensor | None] = {}
    if not any(default is inspect.Parameter.empty for default in defaults):
        masks["none"] = None
    if defaults:
        seen = torch.ones(tokens, tokens, dtype=torch.bool).tril()
        additive = torch.zeros(tokens, tokens).masked_fill(~seen, -math.inf)
        ways = {"−∞ where hidden": additive, "True where seen": seen, "True where hidden": ~seen}
        masks |= ways | {f"{name}, [1, T, T]": mask[None] for name, mask in ways.items()}
    return masks
