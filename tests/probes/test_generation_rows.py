"""Rows behind a cache equal the rows of the full maps."""

import pytest
import torch
from transformers import (
    DiffLlamaConfig,
    DiffLlamaForCausalLM,
    DynamicCache,
    LlamaConfig,
    LlamaForCausalLM,
)

from diffattn.errors import ConfigError
from diffattn.ops.lambda_param import diff_lambda
from diffattn.probes.generation_rows import generation_rows

KINDS = {
    "llama": (LlamaConfig, LlamaForCausalLM),
    "diffllama": (DiffLlamaConfig, DiffLlamaForCausalLM),
}
EPS = torch.finfo(torch.float64).eps


def rows_by_parts(network, ids, first):
    """Rows of the tokens from ``first`` on, in two calls behind a cache."""
    cache = DynamicCache(config=network.config)
    with torch.no_grad():
        network(input_ids=ids[:, :first], past_key_values=cache, use_cache=True)
    return [generation_rows(network, cache, part) for part in (ids[:, first:-2], ids[:, -2:])]


def compare(parts, map_1, acting, num_keys):
    """Every layer and part against full maps ``[layers][H, T, S]``."""
    start = num_keys - sum(part[0].map_1.shape[1] for part in parts)
    for part in parts:
        count = part[0].map_1.shape[1]
        for layer, one in enumerate(part):
            for found, full in ((one.map_1, map_1[layer]), (one.acting, acting[layer])):
                seen = found.shape[-1]
                assert (seen, found.dtype) == (start + count, torch.float64)
                # Weights of size one at most, from sums over a few hundred terms.
                torch.testing.assert_close(
                    found, full[:, start : start + count, :seen], rtol=0, atol=1000 * EPS
                )
        start += count


def test_our_models(make_model, input_ids, attention_type):
    network, ids = make_model(attention_type).double().eval(), input_ids[:1]
    with torch.no_grad():
        full = network(ids, output_attentions=True, output_attention_maps=True)
    map_1 = [layer[0, :, 0].double() for layer in full.attention_maps]
    compare(rows_by_parts(network, ids, 7), map_1, [x[0].double() for x in full.attentions], 12)


@pytest.mark.parametrize("kind", KINDS)
def test_hugging_face_models(kind, input_ids):
    config, model = KINDS[kind]
    network = model(
        config(
            vocab_size=50, hidden_size=32, intermediate_size=32, num_hidden_layers=2,
            num_attention_heads=4, num_key_value_heads=2, initializer_range=0.3,
            attn_implementation="eager",
        )
    ).double().eval()  # fmt: skip
    ids = input_ids[:1]
    with torch.no_grad():
        weights = [layer[0] for layer in network(ids, output_attentions=True).attentions]
    map_1, acting = weights, weights
    if kind == "diffllama":
        layers = [layer.self_attn for layer in network.model.layers]
        lambdas = [
            diff_lambda(x.lambda_q1, x.lambda_k1, x.lambda_q2, x.lambda_k2, x.lambda_init)
            for x in layers
        ]
        map_1 = [w[:2] for w in weights]
        acting = [w[:2] - lam * w[2:] for w, lam in zip(weights, lambdas, strict=True)]
    compare(rows_by_parts(network, ids, 7), map_1, acting, 12)


def test_diff_llama_acts_on_its_values_as_the_rows_say(input_ids):
    """The rows, put to the values by hand, give what goes into the output projection."""
    torch.manual_seed(0)
    network = DiffLlamaForCausalLM(
        DiffLlamaConfig(
            vocab_size=50, hidden_size=32, intermediate_size=32, num_hidden_layers=1,
            num_attention_heads=4, num_key_value_heads=2, initializer_range=0.3,
            attn_implementation="eager",
        )
    ).double().eval()  # fmt: skip
    attention = network.model.layers[0].self_attn
    seen = {}
    attention.v_proj.register_forward_hook(lambda m, i, out: seen.update(v=out))
    attention.o_proj.register_forward_hook(lambda m, inputs, out: seen.update(heads=inputs[0]))
    cache = DynamicCache(config=network.config)
    (layer,) = generation_rows(network, cache, input_ids[:1])
    values = seen["v"][0].unflatten(-1, (2, 8))  # [S, kv heads, D]: both heads' halves
    both = torch.cat([values[:, 0], values[:, 1]], dim=-1)
    heads = attention.groupnorm(layer.acting @ both) * (1 - attention.lambda_init)  # [H, T, 2D]
    # transformers has λ in float32 there.
    torch.testing.assert_close(
        heads.transpose(0, 1).flatten(1),
        seen["heads"][0],
        rtol=0,
        atol=100 * torch.finfo(torch.float32).eps,
    )


def test_a_model_without_weights_is_refused(input_ids):
    network = LlamaForCausalLM(
        LlamaConfig(
            vocab_size=50, hidden_size=32, intermediate_size=32, num_hidden_layers=1,
            num_attention_heads=4, attn_implementation="sdpa",
        )
    )  # fmt: skip
    with pytest.raises(ConfigError, match="must return attention weights, got none"):
        generation_rows(network, DynamicCache(config=network.config), input_ids[:1])
