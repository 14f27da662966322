"""The models: what they compute, what they refuse, and that nothing looks ahead."""

import pytest
import torch

from diffattn.models.decoder_block import DiffTransformerBlock
from diffattn.models.modeling_diff_transformer import DiffTransformerForCausalLM


@pytest.mark.parametrize("name", ["diffattn", "sdpa", "eager"])
def test_no_gradient_comes_from_the_future_or_another_row(model, ids, implementation, name):
    """A leak too small for the logits shows as a gradient that is not exactly zero."""
    embeds = model.model.embed_tokens(ids).detach().requires_grad_()
    with implementation(model, name):
        model(inputs_embeds=embeds).logits[0, 5].square().sum().backward()
    reached = embeds.grad.abs().amax(-1) > 0
    assert reached.tolist() == [[True] * 6 + [False] * 5, [False] * 11]


@pytest.mark.parametrize("keep", [1, 3, torch.tensor([0, 4, 9])], ids=["last", "three", "indices"])
def test_logits_to_keep(make_config, build, ids, keep, assert_only_rounding):
    model = build(make_config("diff"))
    index = keep if isinstance(keep, torch.Tensor) else torch.arange(11 - keep, 11)
    with torch.no_grad():
        logits = model(ids, logits_to_keep=keep).logits
    assert logits.shape == (2, len(index), 61)
    # Not bitwise: the output projection multiplies fewer rows, in another block order.
    assert_only_rounding([logits], model, lambda m: [m(ids).logits.detach()[:, index]])


def test_a_block_adds_its_two_residuals(attention_type, make_config):
    """Eq. (4) and (5) of the DIFF Transformer paper."""
    config = make_config(attention_type, attn_implementation="diffattn")
    block = DiffTransformerBlock(config, 0).double()
    x = torch.randn(2, 5, config.hidden_size, dtype=torch.float64)
    y = block.self_attn(block.input_layernorm(x)) + x
    expected = block.mlp(block.post_attention_layernorm(y)) + y
    assert torch.equal(block(x), expected)


def test_gradient_checkpointing_gives_the_same_gradients(model, ids):
    """And every parameter has a gradient."""
    model.train()
    plain = _gradients(model, ids)
    assert plain.keys() == dict(model.named_parameters()).keys()
    assert all(gradient.abs().max() > 0 for gradient in plain.values())
    # Renamed in transformers 5.23, which deprecates the name that 5.17 knows.
    enable = getattr(model, "activation_checkpointing_enable", None)
    (enable or model.gradient_checkpointing_enable)()
    calls = []
    for layer in model.model.layers:
        layer.input_layernorm.register_forward_hook(lambda *_: calls.append(1))
    checkpointed = _gradients(model, ids)
    assert len(calls) == 4  # each of two layers forward, and once more in backward
    assert plain.keys() == checkpointed.keys()
    assert all(torch.equal(plain[name], checkpointed[name]) for name in plain)


def test_matrices_start_with_the_range_of_the_configuration(make_config):
    """All else of the start is held by hashes, in test_initial_weights.py."""
    torch.manual_seed(0)
    config = make_config("diff_v2", hidden_size=128, initializer_range=0.03)
    for name, parameter in DiffTransformerForCausalLM(config).named_parameters():
        if parameter.ndim == 2:
            # 5 standard errors of a standard deviation estimated from n normal numbers.
            assert abs(parameter.std() / 0.03 - 1) < 5 * (2 * parameter.numel()) ** -0.5, name


def test_a_bfloat16_forward(model, ids, assert_only_rounding, logits_of):
    model.to(torch.bfloat16)
    with torch.no_grad():
        logits = model(ids).logits
    assert logits.dtype == torch.bfloat16
    assert_only_rounding([logits], model, logits_of(input_ids=ids))


def _gradients(model, ids):
    model.zero_grad()
    model(ids, labels=ids).loss.backward()
    return {name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None}
