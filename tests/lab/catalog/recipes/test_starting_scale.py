"""Where training starts: the token must outweigh what blocks write to all tokens alike."""

from dataclasses import replace

import pytest
import torch

from diffattn.lab.catalog.models import TYPES
from diffattn.lab.catalog.recipes.catalog import SCALES, recipe
from diffattn.models.configuration_diff_transformer import DiffTransformerConfig
from diffattn.models.modeling_diff_transformer import DiffTransformerForCausalLM


def rms(x):
    return x.float().square().mean().sqrt().item()


def scales(config):
    """Size of the residual stream before each block, and of what its two halves write."""
    torch.manual_seed(0)
    model = DiffTransformerForCausalLM(config)
    sizes = []
    hooks = []
    for block in model.model.layers:
        hooks.append(block.register_forward_pre_hook(lambda _, x: sizes.append([rms(x[0])])))
        hooks += [
            part.register_forward_hook(lambda _, __, y: sizes[-1].append(rms(y)))
            for part in (block.self_attn, block.mlp)
        ]
    with torch.no_grad():
        model(input_ids=torch.randint(config.vocab_size, (2, 64)), use_cache=False)
    return sizes


@pytest.mark.parametrize("scale", SCALES)
@pytest.mark.parametrize("attention_type", TYPES)
def test_no_block_writes_more_than_the_stream_holds(attention_type, scale):
    config = recipe(scale).model
    for stream, attention, feed_forward in scales(config.twin(attention_type).config):
        assert attention < 0.5 * stream
        assert feed_forward < 0.5 * stream


def test_without_the_multiplier_attention_outweighs_the_tokens():
    """What the first study measured: the test above can fail."""
    config = recipe("study").model
    settings = config.settings() | {"embedding_multiplier": 1.0, "attention_type": "shared_diff"}
    settings |= {"num_heads": 8, "num_kv_heads": 8}
    sizes = scales(DiffTransformerConfig(**settings))
    assert max(attention / stream for stream, attention, _ in sizes) > 1


def test_the_multiplier_scales_embeddings_given_as_such_too():
    config = replace(recipe("smoke").model, embedding_multiplier=3.0)
    torch.manual_seed(0)
    scaled = DiffTransformerForCausalLM(config).eval()
    plain = DiffTransformerForCausalLM(replace(config, embedding_multiplier=1.0)).eval()
    plain.load_state_dict(scaled.state_dict())
    ids = torch.randint(config.vocab_size, (2, 9))
    embeds = scaled.get_input_embeddings()(ids)
    with torch.no_grad():
        expected = plain(inputs_embeds=3 * embeds).logits
        assert torch.equal(scaled(input_ids=ids).logits, expected)
        assert torch.equal(scaled(inputs_embeds=embeds).logits, expected)
        assert not torch.equal(plain(input_ids=ids).logits, expected)


def test_the_papers_recipes_have_none():
    for name in ("diff-transformer-3b", "scaling-830m"):
        assert recipe(name).model.embedding_multiplier == 1
