"""Losses of whole windows, token by token."""

import numpy as np
import pytest
import torch

from diffattn.probes.passes import window_losses


def test_losses_are_those_of_the_tokens_that_follow(make_model, attention_type, input_ids):
    model = make_model(attention_type).eval()
    losses = window_losses(model, input_ids)
    assert (losses.shape, losses.dtype) == ((3, 11), np.float64)
    with torch.no_grad():
        logprobs = model(input_ids).logits.double().log_softmax(-1)
    expected = -logprobs[:, :-1].gather(-1, input_ids[:, 1:, None])[..., 0]
    assert losses == pytest.approx(expected.numpy(), rel=1e-5, abs=1e-6)
    with torch.no_grad():
        mean = model(input_ids, labels=input_ids).loss.item()
    assert losses.mean() == pytest.approx(mean, rel=1e-6)


@pytest.mark.parametrize("training", [True, False])
def test_the_mode_is_kept_also_after_an_error(make_model, input_ids, training):
    model = make_model("diff").train(training)
    modes = []
    model.register_forward_pre_hook(lambda module, args: modes.append(module.training))
    window_losses(model, input_ids)
    assert model.training == training
    with pytest.raises(ValueError, match="must be from 0 to 49"):
        window_losses(model, input_ids + 50)
    assert model.training == training
    assert modes == [False, False]
    assert all(parameter.grad is None for parameter in model.parameters())


def test_autocast_in_force_is_used(make_model, input_ids):
    model = make_model("diff")
    exact = window_losses(model, input_ids)
    with torch.autocast("cpu", torch.bfloat16):
        rounded = window_losses(model, input_ids)
    assert rounded.dtype == np.float64
    assert rounded.mean() == pytest.approx(exact.mean(), rel=0.05)
    assert not np.array_equal(rounded, exact)
