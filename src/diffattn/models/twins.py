"""Exact counts of parameters and FLOPs, and twins: models of another attention type that match."""

from collections.abc import Callable, Sequence
from copy import copy, deepcopy
from dataclasses import dataclass, fields
from functools import partial
from typing import Any, Generic, TypeVar

from diffattn.errors import ConfigError, check_known
from diffattn.models.config.attention_types import ATTENTION, AttentionType, checked_types
from diffattn.models.config.settings import ModelSettings, kept_backend

_HEADS = {"num_heads", "num_kv_heads", "head_dim", "group_ratio"}
MATCHES = ("params", "heads", "attention_flops", "flops")
SomeSettings = TypeVar("SomeSettings", bound=ModelSettings)


@dataclass(frozen=True, kw_only=True, slots=True)
class Twin(Generic[SomeSettings]):
    """A matched configuration, and the differences that remain."""

    config: SomeSettings
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
        parameter_difference=parameter_count(result) - parameter_count(config),
        flops_difference=training_flops(result) - training_flops(config),
    )


def _convert_settings(config: ModelSettings, attention_type: str, match: str) -> dict[str, Any]:
    """The settings that change with the attention type."""
    types = [ATTENTION[name] for name in attention_type.split(",")]
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
    if match == "attention_flops" and (len(counts) > 1 or any(x.grouped for x in types)):
        raise ConfigError(
            "twin: match 'attention_flops' needs heads that do not share maps, of equal FLOPs, got "
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


def attention_parameters(config: ModelSettings) -> int:
    """Parameters of one attention layer; all layers must have one type (see ``of_layer``).

    Source: arXiv:2410.05258v2, Eq. (1) to (3); arXiv:2501.17900 for Shared DIFF.
    """
    facts, count = config.attention, _matrix_parameters(config)
    count += 4 * config.head_dim if facts.lambda_vectors else 0
    count += config.head_dim**2 if facts.head_matrix else 0
    count += config.lambda_rows if config.lambda_bias else 0
    if not facts.query_projections:
        return count
    if config.qkv_bias:
        queries, keys = config.num_projected_queries, facts.key_projections
        if facts.low_rank_maps:
            queries, keys = config.num_heads, 1
        count += config.head_dim * (queries + config.num_kv_heads * (keys + facts.value_width))
    if config.qk_norm:
        count += 2 * config.head_dim
    if config.uses_head_norm and config.head_norm_affine:
        count += facts.value_width * config.head_dim
    return count


def _matrix_parameters(config: ModelSettings) -> int:
    """Weights of the projections of one attention layer, with the λ projection."""
    facts, hidden, width = config.attention, config.hidden_size, config.head_dim
    heads, kv_heads = config.num_heads, config.num_kv_heads
    if not facts.query_projections:
        return 0
    count = hidden * facts.value_width * width * (kv_heads + heads)  # v_proj, o_proj
    if facts.low_rank_maps:
        low = 2 * config.shared_rank * (hidden + width)
        count += (heads + kv_heads) * (hidden * width + low)
    else:
        count += hidden * width * (config.num_projected_queries + kv_heads * facts.key_projections)
    return count + config.lambda_rows * hidden


def parameter_count(config: ModelSettings, *, embeddings: bool = True) -> int:
    """Parameters of the model. ``embeddings`` counts embedding and head, once if tied."""
    block = 3 * config.hidden_size * config.intermediate_size + 2 * config.hidden_size
    count = config.num_hidden_layers * block + config.hidden_size
    count += sum(layers * attention_parameters(kind) for kind, layers in config.by_type())
    if embeddings:
        matrices = 1 if config.tie_word_embeddings else 2
        count += matrices * config.vocab_size * config.hidden_size
    return count


def flops_per_token(
    config: ModelSettings, seq_len: int | None = None, *, training: bool = False
) -> int:
    """Floating-point operations per token: matrix products only, two per multiply-add.

    A token sees (seq_len + 1) / 2 keys on average; ``seq_len`` is by default
    ``max_position_embeddings``. ``training`` counts three times the forward pass.

    Source: arXiv:2001.08361, section 2.1, with attention counted exactly.
    """
    seq_len = config.max_position_embeddings if seq_len is None else seq_len
    feed_forward = 3 * config.hidden_size * config.intermediate_size
    products: float = config.vocab_size * config.hidden_size
    for kind, layers in config.by_type():
        facts = kind.attention
        # The scores of a group's subtracted map are computed once for all its heads.
        units = facts.attention_units * kind.num_heads - (kind.num_heads - kind.num_groups)
        per_key = units * kind.head_dim
        of_heads = kind.num_heads * kind.head_dim**2 if facts.head_matrix else 0
        matrices = _matrix_parameters(kind) + of_heads + feed_forward
        products += layers * (matrices + per_key * (seq_len + 1) / 2)
    forward = 2 * products
    return round((3 if training else 1) * forward)
