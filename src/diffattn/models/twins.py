"""Matched models: the same budget, another attention type."""

from collections.abc import Callable
from copy import copy, deepcopy
from dataclasses import dataclass, fields
from functools import partial
from typing import Any, Generic, TypeVar

from diffattn.errors import ConfigError
from diffattn.models.accounting import flops_per_token, parameter_count
from diffattn.models.config.attention_types import AttentionType, attention_facts
from diffattn.models.config.known_names import check_known
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
    """The model of another attention type that matches ``config``.

    Heads are converted at equal ``head_dim`` through the softmax model they stand for: V1 and
    Shared DIFF have half its heads and key/value heads, V2 its own number (with
    ``"attention_flops"`` half of it, since V2 attends with twice its heads). Grouped heads count as
    V1's; a twin of them has their key/value heads, and one with a key/value head for each head
    becomes grouped with one for each group.

    - ``"heads"``: convert heads, leave the rest.
    - ``"params"``: also change the FFN width until the parameters match as closely as whole
      channels allow (multiples of 8 from ``hidden_size`` 512 on). V1 and softmax differ by at
      most ``6 * head_dim`` per layer as they are, so their FFN stays.
    - ``"attention_flops"``: equal work in attention.
    - ``"flops"``: change the FFN width until the training FLOPs per token, at
      ``max_position_embeddings``, match in the same way.

    Source: arXiv:2410.05258v2, section 2.1 (V1); DIFF V2 note (January 2026), baselines.

    ``changes`` are fields of the twin to set, for example ``shared_rank=8``.

    Raises:
        ConfigError: Unknown type, match or field, heads that cannot be halved, or
            ``"attention_flops"`` of grouped heads.
    """
    facts = attention_facts("twin", attention_type)
    check_known("twin", "match", match, MATCHES)
    values = deepcopy(config.settings())
    for name in changes:
        check_known("twin", "field", name, {*values, *(x.name for x in fields(ModelSettings))})
    if attention_type != config.attention_type:
        values |= _convert_settings(config, facts, match)
    result = type(config)(**(values | changes))
    widths_differ = not (facts.matches_softmax and config.attention.matches_softmax)
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


def _convert_settings(config: ModelSettings, facts: AttentionType, match: str) -> dict[str, Any]:
    """Settings that another attention type changes; the others keep their values."""
    # Settings of the old type fall back to the new type's default.
    values: dict[str, Any] = {"shared_rank": None, "head_norm": None, "lambda_bias": False}
    values["group_ratio"] = None
    if match == "attention_flops" and (facts.grouped or config.attention.grouped):
        raise ConfigError(
            "twin: match of 'grouped_diff' must be 'params', 'heads' or 'flops', got "
            "'attention_flops', which whole heads do not give."
        )
    values |= {
        "attention_type": facts.name,
        "attention_backend": kept_backend(config.attention_backend, facts),
    }
    if not facts.lambda_vectors:
        values["lambda_init"] = None
    divisor = facts.softmax_heads(match)
    for name in ("num_heads", "num_kv_heads"):
        softmax_heads = getattr(config, name) * config.attention.softmax_heads(match)
        if softmax_heads % divisor:
            raise ConfigError(
                f"twin: {name} of the {facts.name!r} twin must be whole, got "
                f"{softmax_heads} / {divisor}."
            )
        values[name] = softmax_heads // divisor
    if facts.grouped and values["num_kv_heads"] == values["num_heads"]:
        values["num_kv_heads"] = None
    return values


def _match_intermediate_size(
    config: ModelSettings, original: ModelSettings, count: Callable[[ModelSettings], int]
) -> int:
    multiple = 8 if config.hidden_size >= 512 else 1
    wider = copy(config)
    wider.intermediate_size = config.intermediate_size + 1
    channel = count(wider) - count(config)
    width = config.intermediate_size - (count(config) - count(original)) / channel
    return max(multiple, round(width / multiple) * multiple)
