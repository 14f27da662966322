"""The models: what they compute, what they refuse, and that nothing looks ahead."""

import pytest
import torch
from torch.nn import functional as F

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
def test_logits_to_keep(model, ids, keep, assert_only_rounding):
    index = keep if isinstance(keep, torch.Tensor) else torch.arange(11 - keep, 11)
    with torch.no_grad():
        logits = model(ids, logits_to_keep=keep).logits
    assert logits.shape == (2, len(index), 61)
    # Not bitwise: the output projection multiplies fewer rows, in another block order.
    assert_only_rounding([logits], model, lambda m: [m(ids).logits.detach()[:, index]])


def test_loss_is_the_cross_entropy_of_the_next_token(model, ids):
    labels = ids.clone()
    labels[0, :4] = -100
    with torch.no_grad():
        out = model(ids, labels=labels)
    log_p = F.log_softmax(out.logits[:, :-1].double(), dim=-1)
    picked = -log_p.gather(-1, labels[:, 1:].clamp(min=0)[..., None]).squeeze(-1)
    counted = labels[:, 1:] != -100
    assert counted.sum() == 17
    expected = picked[counted].mean()
    # The mean of 17 float32 terms of a float32 log-softmax: a few units in the last place each.
    assert abs(out.loss - expected) <= 17 * torch.finfo(torch.float32).eps * picked.max()


def test_a_block_adds_its_two_residuals(attention_type, make_config):
    """Eq. (4) and (5) of the DIFF Transformer paper."""
    config = make_config(attention_type, attn_implementation="diffattn")
    block = DiffTransformerBlock(config, 0).double()
    x = torch.randn(2, 5, config.hidden_size, dtype=torch.float64)
    y = block.self_attn(block.input_layernorm(x)) + x
    expected = block.mlp(block.post_attention_layernorm(y)) + y
    assert torch.equal(block(x), expected)


def test_gradient_checkpointing_gives_the_same_gradients(model, ids):
    model.train()
    plain = _gradients(model, ids)
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


def test_every_parameter_gets_a_gradient(model, ids):
    gradients = _gradients(model, ids)
    assert set(gradients) == {name for name, _ in model.named_parameters()}
    assert all(gradient.abs().max() > 0 for gradient in gradients.values())


def test_start_of_training(attention_type, make_config):
    """Weights N(0, initializer_range²), norms 1, λ N(0, 0.1²), Shared's second factor N(0, 1/r)."""
    torch.manual_seed(0)
    config = make_config(
        attention_type, hidden_size=256, head_dim=64, initializer_range=0.03, vocab_size=500
    )
    model = DiffTransformerForCausalLM(config)
    lambdas = []
    for name, parameter in model.named_parameters():
        if parameter.ndim == 1 and ".lambda_" in name:
            lambdas.append(parameter.detach())
        elif parameter.ndim == 1:
            assert torch.equal(parameter, torch.ones_like(parameter)), name
        else:
            std = config.shared_rank**-0.5 if name.endswith(("q_up", "k_up")) else 0.03
            # 5 standard errors of a standard deviation estimated from n normal numbers.
            assert abs(parameter.std() / std - 1) < 5 * (2 * parameter.numel()) ** -0.5, name
    if config.attention.lambda_vectors:
        drawn = torch.cat(lambdas)
        assert drawn.numel() == 2 * 4 * 64
        assert abs(drawn.std() / 0.1 - 1) < 5 * (2 * drawn.numel()) ** -0.5
    else:
        assert not lambdas


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
