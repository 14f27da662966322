"""Counts in closed form against built models and PyTorch's own FLOP counter."""

from itertools import product

import pytest
import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

from diffattn.models.config.attention_types import ATTENTION_TYPES, CONTROL_TYPES
from diffattn.models.twins import flops_per_token, parameter_count

NUM_TOKENS = 16

OPTIONS = [
    {},
    {"num_kv_heads": 4},
    {"head_norm": True},
    {"head_norm": False},
    {"head_norm": True, "head_norm_affine": False},
    {"tie_word_embeddings": False},
    {"qkv_bias": True},
    {"qk_norm": True},
]
COUNTED = [
    *product(ATTENTION_TYPES, OPTIONS),
    *product(CONTROL_TYPES, [{"qkv_bias": True, "qk_norm": True, "head_norm": True}]),
    *(("shared_diff", {"shared_rank": rank}) for rank in (1, 4, 8)),
    *(("grouped_diff", {"group_ratio": r, "num_kv_heads": 1, "qkv_bias": True}) for r in (1, 4)),
    ("diff_v2", {"lambda_bias": True}),
]


@pytest.mark.sampled(one_of=2)
@pytest.mark.parametrize(("kind", "options"), COUNTED, ids=str)
def test_parameter_count_is_the_built_models(kind, options, make_config, built_parameters):
    config = make_config(kind, **options)
    assert parameter_count(config) == built_parameters(config)
    without = parameter_count(config, embeddings=False)
    if config.tie_word_embeddings:
        assert without == built_parameters(config, embeddings=False)
    else:  # the output matrix is no part of the decoder
        assert parameter_count(config) - without == 2 * config.vocab_size * config.hidden_size


# Which backend does the work that attention_units counts, in units of H D per pair: the reference
# for V1 and Shared (both maps combined before V), the paper's two calls for V2 (each map meets V).
BACKENDS = {
    "softmax": "auto",
    "diff": "reference",
    "shared_diff": "reference",
    "diff_v2": "flash_diff_attn_1",
    "diff_v2_across": "auto",
    "shared_diff_map_norm": "auto",
}


def counted_flops(model, *, training=False):
    """FLOPs of one row of NUM_TOKENS tokens as PyTorch counts them.

    The counter knows matrix products alone, as we do: neither counts norms, rotary positions,
    softmax, SwiGLU's product, λ or the embedding's look-up. The fused CPU kernel is unknown to it,
    so attention runs as plain matrix products. transformers 5.17 makes its rotary angles by a
    matrix product, later versions do not: left out.
    """
    ids = torch.arange(1, NUM_TOKENS + 1).unsqueeze(0)
    with sdpa_kernel(SDPBackend.MATH), FlopCounterMode(display=False) as counter:
        logits = model(ids, use_cache=False).logits
        if training:
            logits.sum().backward()
    by_module = counter.get_flop_counts()
    rotary = [sum(ops.values()) for name, ops in by_module.items() if name.endswith("rotary_emb")]
    return counter.get_total_flops() - sum(rotary)


@pytest.mark.parametrize("training", [False, True], ids=["forward", "training"])
@pytest.mark.parametrize("kind", BACKENDS)
def test_flops_are_the_counters_but_for_hidden_pairs(make_config, kind, build, training):
    """Exactly one difference: these backends compute all T² pairs and mask, of which we count
    the T (T + 1) / 2 visible ones. Backward has two products of equal size for each one.
    """
    config = make_config(kind, attention_backend=BACKENDS[kind])
    per_pair = 2 * config.attention.attention_units * config.num_heads * config.head_dim
    hidden_pairs = NUM_TOKENS * (NUM_TOKENS - 1) // 2
    masked = (3 if training else 1) * config.num_hidden_layers * hidden_pairs * per_pair
    counted = NUM_TOKENS * flops_per_token(config, NUM_TOKENS, training=training)
    assert counted_flops(build(config), training=training) == counted + masked
