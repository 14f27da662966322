"""Losses of every token equal plain forward passes, window by window."""

import numpy as np
import pytest
import torch

from diffattn.inference.token_losses import windows
from scripted_model import with_limits


def tokens_of(model, count, seed=0):
    return np.random.default_rng(seed).integers(1, len(model.tokenizer), size=count)


def expected(model, ids):
    """Losses of all tokens but the first, by one pass over all."""
    row = torch.tensor([ids])
    with torch.no_grad():
        logprobs = model.network(row).logits[0, :-1].log_softmax(-1)
    return -logprobs.gather(-1, row[0, 1:, None])[:, 0].numpy()


def close(found, wanted):
    # Logits are cast to float32 before the softmax: its eps times a loss of at most some tens.
    np.testing.assert_allclose(found, wanted, rtol=1e-6, atol=4e-6)


def test_prefix_losses_equal_one_pass(model):
    rows = [tokens_of(model, n) for n in (50, 200)]
    for row, found in zip(rows, model.prefix_losses(rows, [0]), strict=True):
        close(found, expected(model, [0, *row.tolist()]))
    for row, found in zip(rows, model.prefix_losses(rows, []), strict=True):
        close(found, expected(model, row.tolist()))


def test_a_long_row_in_chunks_equals_one_pass(models):
    model = with_limits(models["diff"], chunk_tokens=32)
    row = tokens_of(model, 300)
    (found,) = model.prefix_losses([row], [0])
    close(found, expected(models["diff"], [0, *row.tolist()]))


@pytest.mark.parametrize("given", [[0], []], ids=["bos", "no bos"])
@pytest.mark.parametrize("length", [40, 64, 65, 170, 176])
def test_sliding_losses_equal_a_pass_per_window(models, length, given):
    model = models["diff_v2"]
    tokens = tokens_of(model, length)
    found = model.sliding_losses(tokens, window=64, stride=16, given=given)
    wanted, done = [], 0
    while done < length:
        end = min(64, length) if not done else min(done + 16, length)
        begin = max(0, done + 16 - 64) if done else 0
        own = expected(model, [*given, *tokens[begin:end].tolist()])
        first = 0 if done or given else 1  # without BOS nothing predicts the first token
        wanted.append(own[len(own) - (end - done - first) :])
        done = end
    assert len(found) == length - (not given)
    close(found, np.concatenate(wanted))


def test_how_windows_run_changes_nothing(models):
    model = models["softmax"]
    tokens = tokens_of(model, 300)
    together = model.sliding_losses(tokens, window=64, stride=16, given=[0])
    for limits in ({"chunk_logits": 1}, {"chunk_tokens": 8}):
        other = with_limits(model, **limits)
        close(other.sliding_losses(tokens, window=64, stride=16, given=[0]), together)


def test_windows_predict_every_token_once():
    for length, window, stride in ((1, 4, 2), (4, 4, 2), (5, 4, 2), (100, 16, 5), (99, 16, 15)):
        end = 0
        for begin, predicted, stop in windows(length, window, stride):
            assert predicted == end
            assert stop - begin <= window
            assert begin == 0 or predicted - begin == window - stride
            end = stop
        assert end == length
