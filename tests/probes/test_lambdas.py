"""One λ per layer, as the layer itself uses it."""

import pytest
import torch

from diffattn.probes.lambdas import layer_lambdas


@pytest.mark.parametrize("attention_type", ["diff", "shared_diff"])
def test_v1_and_shared_give_the_lambda_of_each_layer(make_model, attention_type, input_ids):
    """Which is Eq. (2): tests/layers."""
    model = make_model(attention_type)
    actual = layer_lambdas(model, input_ids)
    assert actual == pytest.approx([x.self_attn.lam().item() for x in model.model.layers])
    assert len(set(actual)) == 3
    assert actual == layer_lambdas(model, input_ids[:1, :2])  # of the weights alone


def test_v2_gives_the_mean_over_tokens_and_heads(make_model, input_ids):
    model = make_model("diff_v2").eval()
    seen = []
    for block in model.model.layers:
        block.input_layernorm.register_forward_hook(lambda m, args, out: seen.append(out))
    with torch.no_grad():
        model(input_ids)
    layers = [block.self_attn for block in model.model.layers]
    expected = [
        torch.sigmoid(x @ layer.lambda_proj.weight.T).mean().item()
        for x, layer in zip(seen, layers, strict=True)
    ]
    actual = layer_lambdas(model, input_ids)
    assert actual == pytest.approx(expected, abs=1e-6)
    assert actual != layer_lambdas(model, input_ids[:1, :2])
    assert all(0 < lam < 1 for lam in actual)


def test_softmax_has_none(make_model, input_ids):
    assert layer_lambdas(make_model("softmax"), input_ids) is None
