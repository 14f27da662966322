"""Twins: models of another attention type with the same parameters, heads or FLOPs."""

from collections.abc import Callable, Sequence
from copy import copy, deepcopy
from dataclasses import dataclass, fields
from functools import partial
from typing import Any, Generic, TypeVar

from diffattn.errors import ConfigError, check_known
from diffattn.models.accounting import flops_per_token, parameter_count
from diffattn.models.config.attention_types import ATTENTION, AttentionType, checked_types
from diffattn.models.config.settings import ModelSettings, kept_backend

_HEADS = {"num_heads", "num_kv_heads", "head_dim", "group_ratio"}
MATCHES = ("params", "heads", "attention_flops", "flops")
SomeSettings = TypeVar("SomeSettings", bound=ModelSettings)


@dataclass(frozen=True, kw_only=True, slots=True)
class Twin(Generic[SomeSettings]):
    """A matched configuration, and the differences that remain."""

    config: SomeSettings
    match: str
    parameter_difference: int
    """Parameters of the twin minus those of the original."""
    flops_difference: int
    """Training FLOPs per token at ``max_position_embeddings``, twin minus original."""


def twin(
    config: SomeSettings, attention_type: str, match: str = "params", **changes: Any
) -> Twin[SomeSettings]:
    """The model of another attention type that matches ``config``; ``changes`` set its fields.

    ``head_dim`` stays. Heads are converted by the softmax heads that each head matches: V1 and
    Shared DIFF have half as many heads and key/value heads as softmax, V2 has as many. (With
    ``"attention_flops"`` V2 has half as many, since it attends with twice its heads.) Grouped heads
    count like V1's. If a model with as many key/value heads as heads becomes grouped, it has one
    key/value head per group.

    - ``"heads"``: convert heads and change nothing else.
    - ``"params"``: also change the FFN width until the parameters match as closely as whole
      channels allow (multiples of 8 from ``hidden_size`` 512 on). V1 and softmax differ by at
      most ``6 * head_dim`` per layer, so between them the FFN is not changed.
    - ``"attention_flops"``: convert heads so that the FLOPs of attention are equal.
    - ``"flops"``: change the FFN width until the training FLOPs per token match in the same way,
      at ``max_position_embeddings``.

    Source: arXiv:2410.05258v2, section 2.1 (V1); DIFF V2 note (January 2026), baselines.
    """
    attention_type = checked_types("twin", attention_type, config.num_hidden_layers)
    check_known("twin", "match", match, MATCHES)
    values = deepcopy(config.settings())
    for name in changes:
        check_known("twin", "field", name, {*values, *(x.name for x in fields(ModelSettings))})
    if attention_type != config.attention_type:
        values |= _convert_settings(config, attention_type, match)
    result = type(config)(**(values | changes))
    of_layers = (*result.attention_by_layer, *config.attention_by_layer)
    widths_differ = not all(facts.matches_softmax for facts in of_layers)
    widths_differ = widths_differ or not _HEADS.isdisjoint(changes)
    training_flops = partial(flops_per_token, training=True)
    if "intermediate_size" not in changes:
        if match == "params" and widths_differ:
            result.intermediate_size = _match_intermediate_size(result, config, parameter_count)
        if match == "flops":
            result.intermediate_size = _match_intermediate_size(result, config, training_flops)
    return Twin(
        config=result,
        match=match,
        parameter_difference=parameter_count(result) - parameter_count(config),
        flops_difference=training_flops(result) - training_flops(config),
    )


def _convert_settings(config: ModelSettings, attention_type: str, match: str) -> dict[str, Any]:
    """The settings that change with the attention type."""
    types = [ATTENTION[name] for name in attention_type.split(",")]
    if match == "attention_flops" and any(x.grouped for x in (*types, *config.attention_by_layer)):
        raise ConfigError(
            "twin: match of 'grouped_diff' must be 'params', 'heads' or 'flops', got "
            "'attention_flops', which whole heads cannot reach."
        )
    # ``None``: the default of the new type.
    values: dict[str, Any] = dict.fromkeys(("shared_rank", "group_ratio", "head_norm"))
    values |= {
        "lambda_bias": False,
        "attention_type": attention_type,
        "attention_backend": kept_backend(config.attention_backend, types),
    }
    if not any(facts.lambda_vectors for facts in types):
        values["lambda_init"] = None
    divisor = _softmax_heads(types, match)
    for name in ("num_heads", "num_kv_heads"):
        softmax_heads = getattr(config, name) * _softmax_heads(config.attention_by_layer, match)
        if softmax_heads % divisor:
            raise ConfigError(
                f"twin: {name} of the {attention_type!r} twin must be whole, got "
                f"{softmax_heads} / {divisor}."
            )
        values[name] = softmax_heads // divisor
    if any(facts.grouped for facts in types) and values["num_kv_heads"] == values["num_heads"]:
        values["num_kv_heads"] = None
    return values


def _softmax_heads(types: Sequence[AttentionType], match: str) -> int:
    """Number of softmax heads that match one head of the widest type."""
    counts = {facts.softmax_heads(match) for facts in types}
    if match == "attention_flops" and len(counts) > 1:
        raise ConfigError(
            "twin: match 'attention_flops' needs layers of equal FLOPs per head, got "
            f"{', '.join(dict.fromkeys(facts.name for facts in types))}."
        )
    return max(counts)


def _match_intermediate_size(
    config: ModelSettings, original: ModelSettings, count: Callable[[ModelSettings], int]
) -> int:
    multiple = 8 if config.hidden_size >= 512 else 1
    wider = copy(config)
    wider.intermediate_size = config.intermediate_size + 1
    channel = count(wider) - count(config)
    width = config.intermediate_size - (count(config) - count(original)) / channel
    return max(multiple, round(width / multiple) * multiple)
