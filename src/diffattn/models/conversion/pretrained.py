r"""A pretrained softmax model as the start of a differential one.

With equal queries both maps are the softmax map A, and A - λA = (1 - λ) A: scaling the output
projection by 1 / (1 - λ) gives the softmax model's output. For V2 λ is σ(0) = ½ and the factor is
exactly 2, so that nothing is rounded in any dtype. The start is no trap: the two queries get the
gradients g and -λ g, opposite in sign, so the first step of training parts them, and λ's own
gradient is that of the output's size, which is not 0.

V1 and Shared DIFF have values twice as wide: the second half of a value is that of the next
key/value head, and the output projection does not read it yet. Their head norm cannot be
preserved, for it divides every head by its size, which depends on the token. With it the start is
the closest that weights alone give: the output projection is scaled by the size that a head's
values have for inputs of unit size. Without it (``head_norm=False``) the output is preserved.

Biases on queries and keys (Qwen2) are copied like the rows they belong to. Norms on them (Qwen3)
stay as they are: a scale of one head's width, shared by all heads and so by both maps. Equal
queries give equal normalised ones, whose gradients are again opposite in sign.

DEX keeps the softmax model's weights and subtracts λ O W_D from a head's output O. W_D is 0 at
first and λ is λ_init: nothing is subtracted yet, and W_D's gradient is not 0.

After training parts of it: with ``peft``, ``target_modules=["q_proj", "o_proj"]`` adapts what
tells the maps apart, and ``modules_to_save=["lambda_proj"]`` trains V2's λ in full (a low-rank
update of a narrow projection saves nothing).
"""

from dataclasses import replace
from functools import partial
from typing import Any

import torch
from torch import Tensor

from diffattn.errors import CheckpointError, ConfigError
from diffattn.layers.lambda_vectors import LAMBDA_STD
from diffattn.layers.shared_diff_attention import for_both_maps
from diffattn.models.config.attention_types import ATTENTION
from diffattn.models.config.settings import kept_backend
from diffattn.models.configuration_diff_transformer import DiffTransformerConfig
from diffattn.models.conversion.layouts import LAMBDAS
from diffattn.models.conversion.lazy import LazyTensor, Weights, derive
from diffattn.models.conversion.our_model import OurModel, configure_like, multiply

_LARGEST_FACTOR = 1e3


def start_from_softmax(model: OurModel, attention_type: str, changes: dict[str, Any]) -> OurModel:
    """A differential model that starts from a softmax model.

    It has the softmax model's output unless it normalises its heads.

    Args:
        model: Softmax model.
        attention_type: A name of ``layouts.STARTS``.
        changes: ``head_norm``, ``lambda_init`` and ``shared_rank``, if set.

    Raises:
        CheckpointError: The softmax model normalises its heads.
        ConfigError: λ_init too near 1, or settings that contradict each other.
    """
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
    weights = dict(model.weights)
    start = _start_v2 if v2 else _start_dex if facts.head_matrix else _start_v1
    for layer in model.layers:
        start(weights, config, layer)
    return replace(model, config=config, weights=weights)


def _start_v2(weights: Weights, config: DiffTransformerConfig, layer: int) -> None:
    """λ from a projection that is 0 at first."""
    dtype = weights["q", layer].dtype
    if config.attention.query_projections == 2:
        _repeat_for_both_maps(weights, "q", layer, config.num_heads)
    weights["o", layer] = multiply(weights["o", layer], 2.0)
    shape = (config.lambda_rows, config.hidden_size)
    weights["lambda_proj", layer] = derive(partial(torch.zeros, shape, dtype=dtype))
    weights["lambda_bias", layer] = derive(partial(torch.zeros, shape[:1], dtype=dtype))
    if config.uses_head_norm:
        raise ConfigError("convert: head_norm of a converted V2 model must be off, got on.")


def _start_v1(weights: Weights, config: DiffTransformerConfig, layer: int) -> None:
    """λ from vectors that leave it at λ_init, and wide values."""
    o = weights["o", layer]
    heads, kv_heads, width = config.num_heads, config.num_kv_heads, config.head_dim
    factor = 1.0 - config.layer_lambda_init(layer)
    if abs(factor) * _LARGEST_FACTOR < 1:
        raise ConfigError(
            f"convert: lambda_init must keep away from 1, got {1 - factor} in layer {layer}."
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
    _start_lambda(weights, config, layer)


def _start_dex(weights: Weights, config: DiffTransformerConfig, layer: int) -> None:
    """A matrix of zeros, whose gradient is λ_init times that of the output."""
    shape, dtype = (config.head_dim, config.head_dim), weights["o", layer].dtype
    weights["dex", layer] = derive(partial(torch.zeros, shape, dtype=dtype))
    _start_lambda(weights, config, layer)
    if config.uses_head_norm:
        raise ConfigError("convert: head_norm of a converted DEX model must be off, got on.")


def _start_lambda(weights: Weights, config: DiffTransformerConfig, layer: int) -> None:
    for role in LAMBDAS:  # q1 = q2 and k1 = k2: the exponentials cancel, their gradients do not
        weights[role, layer] = derive(
            partial(_draw_normal, 2 * layer + (role[7] == "k"), config.head_dim)
        )


def _repeat_for_both_maps(weights: Weights, role: str, layer: int, heads: int) -> None:
    for key in ((role, layer), (f"{role}_bias", layer)):
        if key in weights:
            weights[key] = derive(partial(for_both_maps, heads=heads), weights[key])


def _add_low_rank(weights: Weights, config: DiffTransformerConfig, layer: int) -> None:
    """Updates that are 0 at first, for U is; its gradient is not, for Z is random."""
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
    """Every value head followed by the next one, as one of twice the width."""
    rows = v.unflatten(0, (heads, -1))
    return torch.stack((rows, rows.roll(-1, 0)), 1).flatten(0, 2)


def _pad_columns(o: Tensor, heads: int, factor: float) -> Tensor:
    """Columns for the first half of every value, scaled; none for the second."""
    first = o.unflatten(1, (heads, -1)) / factor
    return torch.cat((first, torch.zeros_like(first)), 2).flatten(1)


def _scale_by_value_size(
    o: Tensor, v: Tensor, norm: Tensor, bias: Tensor | None = None, *, heads: int, factor: float
) -> Tensor:
    """As :func:`_pad_columns`, times the size of each head's values for inputs of unit size."""
    width = 2 * (o.shape[1] // heads)
    squares = (v.float() * norm.float()).square().sum(1)
    if bias is not None:
        squares = squares + bias.float().square()
    sizes = squares.unflatten(0, (-1, width)).mean(1).sqrt()  # [kv_heads]
    sizes = sizes.repeat_interleave(heads // sizes.shape[0])
    columns = o.unflatten(1, (heads, -1)).float() * sizes[:, None]
    return _pad_columns(columns.flatten(1), heads, factor).to(o.dtype)
