"""Build a user's layer, call it, and read its weights: by the names of arguments and parameters."""

import importlib
import inspect
import math
import re
import sys
from collections.abc import Callable
from copy import deepcopy
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from diffattn.errors import ConfigError, did_you_mean, first_line
from diffattn.lab.layer_check.formula import LayerWeights
from diffattn.ops.inputs.formulas import lambda_init, rotary_embedding

HIDDEN, HEADS, LAYER = 64, 4, 2
ULPS = 64
"""Float32 roundings that one value may pass through: a sum over the 64 channels of the layer."""
_ARGUMENTS: dict[str, tuple[Any, str]] = {
    "hidden": (
        HIDDEN,
        "hidden_size embed_dim d_model dim dim_model embedding_dim n_embd in_channels d_in dmodel "
        "model_dim",
    ),
    "heads": (HEADS, "num_heads n_heads n_head heads head_nums nhead h h_head"),
    "kv_heads": (HEADS // 2, "num_kv_heads n_kv_heads num_key_value_heads n_kv_head"),
    "width": (HIDDEN // HEADS // 2, "head_dim d_head dim_head head_size d d_k"),
    "layer": (LAYER, "layer_idx depth layer_id layer_index layer l"),
    "lambda_init": (lambda_init(LAYER), "lambda_init λinit lambda_start init_lambda"),
    "dropout": (0.0, "dropout attn_drop proj_drop dropout_rate p"),
    "length": (16, "max_seq_len block_size context_length seq_len max_len"),
}
"""Meaning of a constructor's argument to its value and its usual names."""
_MEANING = {name: meaning for meaning, (_, names) in _ARGUMENTS.items() for name in names.split()}
_ALWAYS_GIVEN = ("layer", "lambda_init", "dropout", "kv_heads")  # even if there is a default
_INPUTS = ("q", "k", "v", "query", "key", "value", "queries", "keys", "values", "context")


@dataclass(frozen=True, kw_only=True, slots=True)
class UserLayer:
    """A layer with its initial weights, float32 and in evaluation mode."""

    layer: nn.Module
    made: str
    """The call that built the layer, in words."""
    given: tuple[str, ...]
    """Meanings of the arguments of that call, such as ``layer`` (the depth)."""


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
    if not callable(target):
        guess = did_you_mean(name, vars(module)) if target is None else ""
        raise ConfigError(f"--layer: {module_name} has no class or function {name!r}.{guess}")
    if isinstance(target, nn.Module):
        return UserLayer(layer=deepcopy(target).float().eval(), made=f"{name} as it is", given=())
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
            arguments[parameter.name], _ = _ARGUMENTS[meaning]
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


def call_causally(layer: nn.Module, x: Tensor, width: int) -> tuple[Tensor, str | None]:
    """The output with the first mask that makes the layer causal, and the name of that mask.

    If no mask does: the output of the first call that does not fail, and ``None``.
    """
    later = x.clone()
    later[:, -1] += 1.0
    outputs, failure = [], None
    for name, mask in _masks_to_try(layer, x.shape[1]).items():
        try:
            before, after = (_call_layer(layer, y, width, mask) for y in (x, later))
        except ConfigError as error:
            failure = failure or error
            continue
        outputs.append(before)
        rounding = ULPS * torch.finfo(before.dtype).eps * before.abs().max()
        if (before - after)[:, :-1].abs().max() <= rounding:
            return before, name
    if failure is not None and not outputs:
        raise failure
    return outputs[0], None


def _call_layer(layer: nn.Module, x: Tensor, width: int, mask: Tensor | None = None) -> Tensor:
    """Output ``[B, T, hidden]`` of the layer for ``x`` of this shape.

    Arguments for rotary positions get cos and sin of ``width`` channels.
    """
    where = type(layer).__name__
    inputs: list[Tensor] = []
    keywords: dict[str, Any] = {}
    for parameter in inspect.signature(layer.forward).parameters.values():
        name, required = parameter.name, parameter.default is parameter.empty
        if "mask" in name and mask is not None:
            keywords[name] = mask
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


def _masks_to_try(layer: nn.Module, tokens: int) -> dict[str, Tensor | None]:
    """Masks by description: ``None`` unless a mask is required, then the usual causal masks."""
    arguments = inspect.signature(layer.forward).parameters.items()
    defaults = [argument.default for name, argument in arguments if "mask" in name]
    masks: dict[str, Tensor | None] = {} if inspect.Parameter.empty in defaults else {"none": None}
    if defaults:
        seen = torch.ones(tokens, tokens, dtype=torch.bool).tril()
        additive = torch.zeros(tokens, tokens).masked_fill(~seen, -math.inf)
        ways = {"−∞ where hidden": additive, "True where seen": seen, "True where hidden": ~seen}
        masks |= ways | {f"{name}, [1, T, T]": mask[None] for name, mask in ways.items()}
    return masks


_FILLERS = {"w", "proj", "projection", "linear", "lin", "to", "layer", "dense"}
_ROLES = {
    "q": "q", "query": "q", "queries": "q", "wq": "q", "k": "k", "key": "k", "keys": "k",
    "wk": "k", "v": "v", "value": "v", "values": "v", "wv": "v", "o": "o", "out": "o",
    "output": "o", "wo": "o", "c": "o", "fc": "o", "": "o", "qkv": "qkv", "wqkv": "qkv",
    "c_attn": "qkv", "in": "qkv",
}  # fmt: skip
_NORM = re.compile("norm|ln|scale|gamma")
LAMBDA_NAME = re.compile("lambda|λ|lam_|lam$")


def read_weights(layer: nn.Module) -> LayerWeights:
    """Read the weights of a layer by role, float64."""
    stacks: dict[str, dict[str, Tensor]] = {"matrix": {}, "bias": {}}
    lambdas, norms = {}, {}
    for name, parameter in sorted(layer.named_parameters(), key=_is_second_map):
        tensor = parameter.detach().double()
        kind, short_name = "bias" if name.endswith("bias") else "matrix", _component(name)
        if LAMBDA_NAME.search(name.lower()):
            lambdas[name] = tensor
        elif tensor.ndim <= 2 and short_name in _ROLES:
            role, stack = _ROLES[short_name], stacks[kind]
            axis = -1 if (kind, role) == ("matrix", "o") else 0
            stack[role] = torch.cat((stack[role], tensor), axis) if role in stack else tensor
        elif tensor.ndim == 1 and _NORM.search(name.lower()):
            norms[kind] = tensor
    matrices, biases = stacks.values()
    for tensors in (matrices, biases):
        if "qkv" in tensors:
            tensors |= dict(zip("qkv", tensors.pop("qkv").chunk(3), strict=True))
    vectors = _vectors(lambdas, matrices, biases)
    attention_type = "diff_v2" if "lambda_proj" in matrices else "diff"
    if set("qkvo") - matrices.keys() or (not vectors and attention_type == "diff"):
        names = ", ".join(name for name, _ in layer.named_parameters()) or "nothing"
        raise ConfigError(
            f"{type(layer).__name__}: must have projections named q_proj, k_proj, v_proj and "
            "o_proj (or one qkv), and of λ vectors lambda_q1, lambda_k1, lambda_q2 and lambda_k2 "
            f"(V2: lambda_proj), got {names}."
        )
    norm = norms.get("matrix")
    if norm is not None:
        norm = torch.stack((norm, norms.get("bias", torch.zeros_like(norm))))
    heads, kv_heads, width = _sizes(layer, matrices, vectors)
    return LayerWeights(
        attention_type=attention_type, num_heads=heads, num_kv_heads=kv_heads, head_dim=width,
        matrices=matrices, biases=biases, lambdas=vectors, norm=norm,
    )  # fmt: skip


def _component(name: str) -> str:
    """The part of a parameter's name that tells its role: ``q`` for ``attn.q_proj.weight``."""
    parts = [part for part in name.lower().split(".") if not part.isdecimal()]
    if len(parts) > 1 and parts[-1] in ("weight", "bias"):
        parts.pop()
    words = re.sub(r"_?[12]|_weight|_bias", "", parts[-1]).split("_")
    return "_".join(word for word in words if word not in _FILLERS)


def _is_second_map(item: tuple[str, Any]) -> bool:
    """Whether a parameter belongs to the second map; as a sort key it puts these rows last."""
    parts = [part for part in item[0].split(".") if not part.isdecimal()]
    return any("2" in part for part in parts[-2:])


def _vectors(
    lambdas: dict[str, Tensor], matrices: dict[str, Tensor], biases: dict[str, Tensor]
) -> tuple[Tensor, ...]:
    """λ's four vectors, or nothing; V2's λ projection is added to ``matrices`` and ``biases``."""
    vectors: dict[str, list[Tensor]] = {}
    for name, tensor in lambdas.items():
        place = re.search("([qk])_?([12])", name)
        if place is not None:
            vectors.setdefault(place[2] + place[1], []).append(tensor)
    if len(vectors) == 4:
        by_head = (vectors[place] for place in ("1q", "1k", "2q", "2k"))
        return tuple(torch.stack(x) if len(x) > 1 else x[0] for x in by_head)
    for name, tensor in lambdas.items():
        if tensor.ndim == 2:
            matrices["lambda_proj"] = tensor
        elif name.endswith("bias"):
            biases["lambda_proj"] = tensor
    return ()


def _sizes(
    layer: nn.Module, matrices: dict[str, Tensor], lambdas: tuple[Tensor, ...]
) -> tuple[int, int, int]:
    """H, Hkv and D; raises ``ConfigError`` if no differential attention has these shapes."""
    rows = {role: tensor.shape[0] for role, tensor in matrices.items()}
    shapes = ", ".join(f"{role} {list(tensor.shape)}" for role, tensor in matrices.items())
    where, key_maps = type(layer).__name__, 2
    if "lambda_proj" in rows:
        heads, key_maps = rows["lambda_proj"], 1
    else:
        heads = rows["q"] // (2 * lambdas[0].shape[-1])
    if not heads or rows["q"] % (2 * heads):
        raise ConfigError(
            f"{where}: q must have 2 x heads x width rows, got {shapes} and {heads} heads."
        )
    width = rows["q"] // (2 * heads)
    kv_heads = rows["k"] // (key_maps * width)
    value_width = rows["v"] // max(kv_heads, 1)
    fits = (
        kv_heads and heads % kv_heads == 0
        and rows["k"] == kv_heads * key_maps * width
        and matrices["o"].shape[1] == heads * value_width
        and len({matrices[role].shape[1] for role in "qkv"} | {rows["o"]}) == 1
    )  # fmt: skip
    if not fits:
        raise ConfigError(
            f"{where}: with {heads} heads of width {width} k must have {key_maps} x Hkv x {width} "
            f"rows, v Hkv x Dv, o H x Dv columns, got {shapes}."
        )
    return heads, kv_heads, width
