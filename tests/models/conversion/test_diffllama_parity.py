"""Our V1 against transformers' own DiffLlama: another author's implementation, the same function.

DiffLlama counts 2h heads where we count h, and pairs head i with head i + h. Its head norm has no
weight and uses the blocks' eps; its λ_init schedule counts from 0 as ours.
"""

import pytest
import torch

LAMBDAS = ("lambda_q1", "lambda_k1", "lambda_q2", "lambda_k2")


@pytest.fixture(scope="module", params=[4, 2, 1], ids=["mha", "gqa", "mqa"])
def folders(request, diffllama, converted):
    """DiffLlama, and our model with its weights."""
    folder = diffllama(2 * request.param, num_hidden_layers=3)
    return folder, converted(folder, "diffattn")


@pytest.fixture
def reference(folders, network):
    return network(folders[0])


@pytest.fixture
def converted_model(folders, network):
    """Its λ differs clearly from the start."""
    model = network(folders[1])
    for layer in model.model.layers:
        assert abs(layer.self_attn.lam().item() - layer.self_attn.lambda_init) > 0.1
    return model


@pytest.mark.parametrize("implementation", ["eager", "sdpa"])
def test_logits_are_equal_to_rounding(
    reference, converted_model, ids, implementation, assert_only_rounding
):
    reference.set_attn_implementation(implementation)
    with torch.no_grad():
        logits = reference(ids).logits
    assert_only_rounding([logits], converted_model, lambda m: [m(ids).logits.detach()])


def test_gradients_are_equal_to_rounding(reference, converted_model, ids, assert_only_rounding):
    def gradients(model):
        """Of the embedding, which all layers feed, and of λ in all layers together."""
        model.zero_grad()
        model(ids, labels=ids).loss.backward()
        attention = [layer.self_attn for layer in model.model.layers]
        lambdas = [getattr(layer, name).grad for layer in attention for name in LAMBDAS]
        return model.model.embed_tokens.weight.grad, torch.stack(lambdas)

    assert_only_rounding(gradients(reference), converted_model, gradients)


def relative_error(actual, exact):
    return float((actual - exact).abs().max() / exact.abs().max())


def test_a_wrong_pairing_is_seen(reference, converted_model, ids):
    """The comparison can fail: without the permutation the logits are far apart."""
    for our_layer, layer in zip(converted_model.model.layers, reference.model.layers, strict=True):
        our_layer.self_attn.q_proj.weight = layer.self_attn.q_proj.weight
    with torch.no_grad():
        assert relative_error(converted_model(ids).logits, reference(ids).logits) > 0.01
