"""Exact parameter and FLOP counts of a configuration, without building the model."""

from diffattn.models.configuration_diff_transformer import (
    MAPS_WITH_LAMBDA_INIT,
    DiffTransformerConfig,
)

# Multiply-adds per query-key pair in units of num_heads * head_dim: scores plus weighted values.
# V1 and Shared combine the maps before V, as any implementation may. V2 is counted as its
# authors run it, as one flash call with twice the heads; combining first would take 3.
ATTENTION_UNITS = {"softmax": 2, "diff": 4, "shared_diff": 4, "diff_v2": 4}


def attention_parameters(config: DiffTransformerConfig) -> int:
    """Parameters of one attention layer.

    Source: arXiv:2410.05258v2, Eq. (1) to (3); arXiv:2501.17900 for Shared DIFF.
    """
    hidden, width = config.hidden_size, config.head_dim
    heads, kv_heads = config.num_heads, config.num_kv_heads
    pair = config.attention_type in MAPS_WITH_LAMBDA_INIT
    value = 2 * width if pair else width
    count = hidden * value * (kv_heads + heads)  # v_proj, o_proj
    if config.attention_type == "shared_diff":
        low = 2 * config.shared_rank * (hidden + width)
        count += (heads + kv_heads) * (hidden * width + low)
    else:
        query_maps = 1 if config.attention_type == "softmax" else 2
        key_maps = 2 if pair else 1
        count += hidden * width * (heads * query_maps + kv_heads * key_maps)
    if pair:
        count += 4 * width  # λ vectors
    if config.attention_type == "diff_v2":
        count += heads * (hidden + config.lambda_bias)
    if config.uses_head_norm and config.head_norm_affine:
        count += value
    return count


def parameter_count(config: DiffTransformerConfig, *, embeddings: bool = True) -> int:
    """Parameters of the whole model; tied embeddings are counted once.

    Args:
        config: The model.
        embeddings: Count input and output embeddings too.
    """
    block = attention_parameters(config) + 3 * config.hidden_size * config.intermediate_size
    count = config.num_hidden_layers * (block + 2 * config.hidden_size) + config.hidden_size
    if embeddings:
        matrices = 1 if config.tie_word_embeddings else 2
        count += matrices * config.vocab_size * config.hidden_size
    return count


def flops_per_token(
    config: DiffTransformerConfig, seq_len: int | None = None, *, training: bool = False
) -> int:
    """Floating-point operations per token: matrix products only, two per multiply-add.

    Attention is causal, so a token meets (seq_len + 1) / 2 keys on average.

    Source: arXiv:2001.08361, section 2.1, with attention counted exactly.

    Args:
        config: The model.
        seq_len: Tokens per sequence. Default: ``max_position_embeddings``.
        training: Count forward and backward, that is three times forward.

    Returns:
        FLOPs per token, rounded to the nearest integer.
    """
    seq_len = config.max_position_embeddings if seq_len is None else seq_len
    products = attention_parameters(config)
    if config.attention_type in MAPS_WITH_LAMBDA_INIT:
        products -= 4 * config.head_dim
    if config.uses_head_norm and config.head_norm_affine:
        pair = config.attention_type in MAPS_WITH_LAMBDA_INIT
        products -= (2 if pair else 1) * config.head_dim
    if config.attention_type == "diff_v2" and config.lambda_bias:
        products -= config.num_heads
    products += 3 * config.hidden_size * config.intermediate_size
    units = ATTENTION_UNITS[config.attention_type] * config.num_heads * config.head_dim
    per_layer = products + units * (seq_len + 1) / 2
    forward = 2 * (config.num_hidden_layers * per_layer + config.vocab_size * config.hidden_size)
    return round((3 if training else 1) * forward)
