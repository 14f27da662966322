"""What the blocks write adds up to the stream, and is measured where it is written."""

import pytest
import torch

from diffattn.probes.activations import residual_writes


def rms(x):
    return x.square().mean().sqrt().item()


def test_writes_equal_the_differences_of_hidden_states(make_model, attention_type, input_ids):
    """Against hidden states that Hugging Face records at the borders of the blocks."""
    model = make_model(attention_type)
    model.config.embedding_multiplier = 3.0
    rows = residual_writes(model, input_ids)
    assert model.training
    between = betweens(model, input_ids)
    with torch.no_grad():
        stream = model(input_ids, output_hidden_states=True).hidden_states[:3]
        blocks = zip(model.model.layers, between, strict=True)
        fed = [block.mlp(block.post_attention_layernorm(x)) for block, x in blocks]
    for row, before, after, last in zip(rows, stream, between, fed, strict=True):
        expected = {"stream": before, "attention": after - before, "between": after}
        expected["feed_forward"] = last
        assert row == pytest.approx({name: rms(x) for name, x in expected.items()}, rel=1e-4)


def betweens(model, input_ids):
    """The stream between attention and FFN of every block."""
    seen = []
    hooks = [
        block.post_attention_layernorm.register_forward_pre_hook(lambda m, x: seen.append(x[0]))
        for block in model.model.layers
    ]
    with torch.no_grad():
        model.eval()(input_ids)
    for hook in hooks:
        hook.remove()
    return seen
