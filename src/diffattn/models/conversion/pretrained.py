r"""Convert a pretrained softmax model to a differential model with the same output at the start.

With equal queries both maps are the softmax map A, and A - λA = (1 - λ) A. So the output
projection is divided by 1 - λ to keep the softmax model's output. For V2 λ is σ(0) = ½ and the
factor is exactly 2, so nothing is rounded. Training can leave this start: the two queries have
gradients g and -λ g of opposite sign, also behind Qwen3's norms, and λ's gradient is not 0.

V1 and Shared DIFF have values twice as wide. The second half of a value is a copy of the next
key/value head, and the output projection has weights of 0 for it. With a head norm, which divides
every head by its size, the output is only approximated: the output projection is multiplied by the
size of a head's values for inputs of unit size. DEX subtracts λ O W_D from a head's output O; at
the start W_D = 0.
"""

from dataclasses import replace
from functools import partial
from typing import Any

import torch
from torch import Tensor

from diffattn.errors import CheckpointError, ConfigError
from diffattn.layers.parts import LAMBDA_STD
from diffattn.layers.shared_diff_attention import for_both_maps
from diffattn.models.config.attention_types import ATTENTION
from diffattn.models.config.settings import kept_backend
from diffattn.models.configuration_diff_transformer import DiffTransformerConfig
from diffattn.models.conversion.layouts import LAMBDAS
from diffattn.models.conversion.our_model import OurModel, configure_like, multiply
from diffattn.models.conversion.source import LazyTensor, Weights, derive


def start_from_softmax(model: OurModel, attention_type: str, changes: dict[str, Any]) -> OurModel:
    """A model of a type in ``layouts.STARTS`` that starts from a softmax model. ``changes`` are
    values for ``head_norm``, ``lambda_init`` or ``shared_rank``."""
    if model.config.uses_head_norm:
        raise CheckpointError("convert: a softmax model must have no head norm, got one.")
    facts = ATTENTION[attention_type]
    settings = model.config.settings() | {
        "attention_type": attention_type,
        "head_norm": None,
        "attention_backend": kept_backend(model.config.attention_backend, [facts]),
    }
    v2 = facts.lambda_projection
    config = configure_like(
        model.config, settings | ({"lambda_bias": True} if v2 else {}) | changes
    )
    if config.uses_head_norm and facts.value_width == 1:
        kind = "V2" if v2 else "DEX"
        raise ConfigError(f"convert: head_norm of a converted {kind} model must be off, got on.")
    weights, width = dict(model.weights), config.head_dim
    for layer in model.layers:
        if v2:
            _start_v2(weights, config, layer)
        elif facts.head_matrix:
            zeros = partial(torch.zeros, (width, width), dtype=weights["o", layer].dtype)
            weights["dex", layer] = derive(zeros)
        else:
            _start_v1(weights, config, layer)
        for role in LAMBDAS if facts.lambda_vectors else ():
            # q1 = q2 and k1 = k2, so λ = λ_init, but gradients are not 0.
            seed = 2 * layer + (role[7] == "k")
            weights[role, layer] = derive(partial(_draw_normal, seed, width))
    return replace(model, config=config, weights=weights)


def _start_v2(weights: Weights, config: DiffTransformerConfig, layer: int) -> None:
    """V2 and gated types: the λ projection is 0, so λ = ½ and the output projection is doubled."""
    dtype = weights["q", layer].dtype
    if config.attention.query_projections == 2:
        _repeat_for_both_maps(weights, "q", layer, config.num_heads)
    weights["o", layer] = multiply(weights["o", layer], 2.0)
    shape = (config.lambda_rows, config.hidden_size)
    weights["lambda_proj", layer] = derive(partial(torch.zeros, shape, dtype=dtype))
    weights["lambda_bias", layer] = derive(partial(torch.zeros, shape[:1], dtype=dtype))


def _start_v1(weights: Weights, config: DiffTransformerConfig, layer: int) -> None:
    """V1 and Shared DIFF: λ = λ_init, values are widened, the output projection is rescaled."""
    o = weights["o", layer]
    heads, kv_heads, width = config.num_heads, config.num_kv_heads, config.head_dim
    factor = 1.0 - config.layer_lambda_init(layer)
    if abs(factor) * 1000 < 1:
        raise ConfigError(
            f"convert: lambda_init must differ from 1 by 0.001 or more, got {1 - factor} in layer "
            f"{layer}."
        )
    if config.attention.low_rank_maps:
        _add_low_rank(weights, config, layer)
    else:
        _repeat_for_both_maps(weights, "q", layer, heads)
        _repeat_for_both_maps(weights, "k", layer, kv_heads)
    for role in ("v", "v_bias") if config.qkv_bias else ("v",):
        weights[role, layer] = derive(partial(_widen_values, heads=kv_heads), weights[role, layer])
    if config.uses_head_norm:
        values = [weights[role, layer] for role in ("v", "input_norm")]
        values += [weights["v_bias", layer]] if config.qkv_bias else []
        weights["o", layer] = derive(
            partial(_scale_by_value_size, heads=heads, factor=factor), o, *values
        )
        if config.head_norm_affine:
            weights["subln", layer] = derive(partial(torch.ones, 2 * width, dtype=o.dtype))
    else:
        weights["o", layer] = derive(partial(_pad_columns, heads=heads, factor=factor), o)


def _repeat_for_both_maps(weights: Weights, role: str, layer: int, heads: int) -> None:
    for key in ((role, layer), (f"{role}_bias", layer)):
        if key in weights:
            weights[key] = derive(partial(for_both_maps, heads=heads), weights[key])


def _add_low_rank(weights: Weights, config: DiffTransformerConfig, layer: int) -> None:
    """Low-rank updates U Zᵀ with U = 0 and random Z, so that U has a gradient."""
    rank, width = config.shared_rank, config.head_dim
    for role, heads in (("q", config.num_heads), ("k", config.num_kv_heads)):
        dtype = weights[role, layer].dtype
        down = (heads * 2 * rank, config.hidden_size)
        weights[f"{role}_down", layer] = derive(partial(torch.zeros, down, dtype=dtype))
        seed = 2**20 + 2 * layer + (role == "k")
        up = partial(_draw_normal, seed, heads, 2, width, rank, std=rank**-0.5, dtype=dtype)
        weights[f"{role}_up", layer] = LazyTensor((heads, 2, width, rank), dtype, up)


def _draw_normal(
    seed: int, *shape: int, std: float = LAMBDA_STD, dtype: torch.dtype = torch.float32
) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.normal(0.0, std, shape, generator=generator).to(dtype)


def _widen_values(v: Tensor, heads: int) -> Tensor:
    """Every value head concatenated with the next one: one head of twice the width."""
    rows = v.unflatten(0, (heads, -1))
    return torch.stack((rows, rows.roll(-1, 0)), 1).flatten(0, 2)


def _pad_columns(o: Tensor, heads: int, factor: float) -> Tensor:
    """Output projection for wide values: columns over ``factor``, then columns of 0."""
    first = o.unflatten(1, (heads, -1)) / factor
    return torch.cat((first, torch.zeros_like(first)), 2).flatten(1)


def _scale_by_value_size(
    o: Tensor, v: Tensor, norm: Tensor, bias: Tensor | None = None, *, heads: int, factor: float
) -> Tensor:
    """:func:`_pad_columns` times each head's RMS value for random inputs of unit variance."""
    width = 2 * (o.shape[1] // heads)
    squares = (v.float() * norm.float()).square().sum(1)
    if bias is not None:
        squares = squares + bias.float().square()
    sizes = squares.unflatten(0, (-1, width)).mean(1).sqrt()  # [kv_heads]
    sizes = sizes.repeat_interleave(heads // sizes.shape[0])
    columns = o.unflatten(1, (heads, -1)).float() * sizes[:, None]
    return _pad_columns(columns.flatten(1), heads, factor).to(o.dtype)
