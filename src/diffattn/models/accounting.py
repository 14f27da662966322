"""Exact parameter and FLOP counts of a configuration, without building the model."""

from diffattn.models.config.settings import ModelSettings


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
