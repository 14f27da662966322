"""Matched models: the same budget, another attention type."""

from copy import deepcopy
from dataclasses import dataclass
from typing import Any

from diffattn.errors import ConfigError
from diffattn.models.accounting import flops_per_token, parameter_count
from diffattn.models.configuration_diff_transformer import (
    ATTENTION_TYPES,
    MAPS_WITH_LAMBDA_INIT,
    DiffTransformerConfig,
)
from diffattn.models.known_names import check_known
from diffattn.ops import backends

MATCHES = ("params", "heads", "attention_flops")


@dataclass(frozen=True, kw_only=True, slots=True)
class Twin:
    """A matched configuration and what is left unmatched."""

    config: DiffTransformerConfig
    match: str
    parameter_difference: int
    """Parameters of the twin minus those of the original."""
    flops_difference: int
    """Training FLOPs per token at ``max_position_embeddings``, twin minus original."""


def twin(
    config: DiffTransformerConfig, attention_type: str, match: str = "params", **changes: Any
) -> Twin:
    """The model of another attention type that matches ``config``.

    Heads are converted at equal ``head_dim`` through the softmax model they stand for: V1 and
    Shared DIFF have half its heads and key/value heads, V2 its own number (with
    ``"attention_flops"`` half of it, since V2 attends with twice its heads).

    - ``"heads"``: convert heads, leave the rest.
    - ``"params"``: also change the FFN width until the parameters match as closely as whole
      channels allow (multiples of 8 from ``hidden_size`` 512 on). V1 and softmax differ by at
      most ``6 * head_dim`` per layer as they are, so their FFN stays.
    - ``"attention_flops"``: equal work in attention.

    Source: arXiv:2410.05258v2, section 2.1 (V1); DIFF V2 note (January 2026), baselines.

    Args:
        config: The original.
        attention_type: Type of the twin.
        match: ``"params"``, ``"heads"`` or ``"attention_flops"``.
        **changes: Fields of the twin to set, for example ``shared_rank=8``.

    Returns:
        The configuration and the exact residuals.

    Raises:
        ConfigError: Unknown type, match or field, or heads that cannot be halved.
    """
    check_known("twin", "attention_type", attention_type, ATTENTION_TYPES)
    check_known("twin", "match", match, MATCHES)
    values = deepcopy(config.settings())
    for name in changes:
        check_known("twin", "field", name, values)
    values["attention_type"] = attention_type
    if attention_type != config.attention_type:
        factor = _softmax_heads_per_head(config.attention_type, match)
        divisor = _softmax_heads_per_head(attention_type, match)
        for name in ("num_heads", "num_kv_heads"):
            softmax_heads = values[name] * factor
            if softmax_heads % divisor:
                raise ConfigError(
                    f"twin: {name} of the {attention_type!r} twin must be whole, got "
                    f"{softmax_heads} / {divisor}."
                )
            values[name] = softmax_heads // divisor
        # What belongs to the type falls back to the new type's default.
        values |= {"shared_rank": None, "head_norm": None, "lambda_bias": False}
        if attention_type not in MAPS_WITH_LAMBDA_INIT:
            values["lambda_init"] = None
        op = "softmax_attention" if attention_type == "softmax" else "diff_attention"
        if values["attention_backend"] not in backends.names(op):
            values["attention_backend"] = "auto"
    result = DiffTransformerConfig(**(values | changes))
    widths_differ = {"diff_v2", "shared_diff"} & {attention_type, config.attention_type}
    if match == "params" and widths_differ and "intermediate_size" not in changes:
        result.intermediate_size = _matching_intermediate_size(result, parameter_count(config))
    return Twin(
        config=result,
        match=match,
        parameter_difference=parameter_count(result) - parameter_count(config),
        flops_difference=flops_per_token(result, training=True)
        - flops_per_token(config, training=True),
    )


def _softmax_heads_per_head(attention_type: str, match: str) -> int:
    if attention_type == "diff_v2":
        return 2 if match == "attention_flops" else 1
    return 2 if attention_type in MAPS_WITH_LAMBDA_INIT else 1


def _matching_intermediate_size(config: DiffTransformerConfig, target: int) -> int:
    """The FFN width whose parameter count is nearest to ``target``."""
    multiple = 8 if config.hidden_size >= 512 else 1
    channel = 3 * config.hidden_size * config.num_hidden_layers
    surplus = parameter_count(config) - target
    width = config.intermediate_size - surplus / channel
    return max(multiple, round(width / multiple) * multiple)
