"""Scores equal an independent forward pass, with and without shared prefixes."""

import random

import numpy as np
import pytest
import torch

from diffattn.lab.inference.network_reader import ItemError
from diffattn.lab.inference.scoring import Continuation
from language_models import plain_logprobs
from scripted_model import LoggedModel, with_limits


def continuations(model, seed=0):
    """Contexts of unequal lengths: some begin with a long text, some share nothing."""
    generator = random.Random(seed)
    vocab = len(model.tokenizer)

    def some(n):
        return tuple(generator.randrange(1, vocab) for _ in range(n))

    long = some(300)
    results = [Continuation(long + some(generator.randint(1, 9)), some(3)) for _ in range(5)]
    results += [Continuation(some(n), some(m)) for n, m in ((1, 1), (40, 7), (9, 2))]
    results += [Continuation(long[:150] + some(4), some(1)), Continuation(long, some(2))]
    generator.shuffle(results)
    return results


def assert_scores_of_a_plain_pass(model):
    asked = continuations(model)
    for entry, results in zip(asked, model.score(asked), strict=True):
        wanted = plain_logprobs(model, [*entry.context, *entry.target])[-len(entry.target) :]
        # float64: sums of a few hundred terms of size 1, a few thousand times its epsilon.
        assert results.token_logprobs == pytest.approx(wanted.tolist(), rel=0, abs=1e-12)
        assert results.logprob == pytest.approx(sum(results.token_logprobs))


def test_scores_equal_a_plain_forward_pass(model):
    assert_scores_of_a_plain_pass(model)


def test_layers_with_a_window_score_as_a_plain_forward_pass(build_windowed):
    assert_scores_of_a_plain_pass(build_windowed(8))


def test_weights_of_any_shape_count_in_the_hash(build):
    model = build("llama")
    model.network.register_buffer("scale", torch.tensor(1))
    before = model.facts()["weights"]
    changed = build("llama")
    changed.network.register_buffer("scale", torch.tensor(2))
    assert changed.facts()["weights"] != before


@pytest.mark.parametrize("limits", [{"chunk_tokens": 16}, {"cache_bytes": 1}], ids=str)
def test_long_rows_in_chunks_and_small_batches_change_nothing(models, limits):
    model = models["diff"]
    asked = [*continuations(model), Continuation((1, 2, 3), tuple(range(5, 205)))]
    whole = model.score(asked)
    for a, b in zip(whole, with_limits(model, **limits).score(asked), strict=True):
        assert a.token_logprobs == pytest.approx(b.token_logprobs, abs=1e-5)
        assert a.is_greedy == b.is_greedy


def test_a_shared_context_is_read_once(models):
    model = LoggedModel(models["softmax"])
    context = tuple(range(1, 201))
    model.score([Continuation((*context, i), (i,)) for i in range(30)])
    rows = [row for _, rows in model.passes for row in rows]
    assert sum(model.reads) + sum(map(len, rows)) < 200 + 30 * 3


@pytest.mark.parametrize(
    ("context", "target", "message"),
    [
        ((), (1,), "a token or more"),
        ((1,), (), "a token or more"),
        ((1,) * 1024, (1, 2), "1024 tokens, got 1025"),
    ],
)
def test_what_cannot_be_scored(models, context, target, message):
    with pytest.raises(ItemError, match=message):
        models["diff"].score([Continuation(context, target)])


def test_what_was_read_before_counts(model):
    long = tuple(i % 90 for i in range(270))
    rows = [Continuation((7,), (1, 2)), Continuation((5,) * 140, (3,)), Continuation((5, 4), (9,))]
    whole = [Continuation(long + entry.context, entry.target) for entry in rows]
    wanted = model.score(whole)
    for reader in (model, with_limits(model, chunk_logits=1)):  # then every row by chunks
        for a, b in zip(wanted, reader.score(rows, before=model.read(long)), strict=True):
            assert a.token_logprobs == pytest.approx(b.token_logprobs, abs=1e-5)
            assert a.is_greedy == b.is_greedy
    with pytest.raises(ItemError, match="1024 tokens, got 1025"):
        model.score([Continuation((1,) * 754, (1, 2))], before=model.read(long))


def test_rows_can_run_alone(models):
    """Each row in a pass of its own, from its first token, and with the same scores."""
    model = LoggedModel(models["diff"])
    asked = continuations(model)
    expected_scores = model.score(asked)
    model.rows_alone = True
    model.passes.clear()
    results = model.score(asked)
    assert sorted(model.passes) == sorted(
        (0, [(*entry.context, *entry.target[:-1])]) for entry in asked
    )
    for a, b in zip(expected_scores, results, strict=True):
        assert a.token_logprobs == pytest.approx(b.token_logprobs, abs=1e-5)


def tokens_of(model, count, seed=0):
    return np.random.default_rng(seed).integers(1, len(model.tokenizer), size=count)


def close(results, wanted):
    # Logits are cast to float32 before the softmax: its eps times a loss of at most some tens.
    np.testing.assert_allclose(results, wanted, rtol=1e-6, atol=4e-6)


def test_prefix_losses_equal_one_pass(model):
    rows = [tokens_of(model, n) for n in (50, 200)]
    for reader in (model, with_limits(model, chunk_tokens=32)):
        for given in ([0], []):
            for row, results in zip(rows, reader.prefix_losses(rows, given), strict=True):
                close(results, -plain_logprobs(model, [*given, *row.tolist()]).numpy())


@pytest.mark.parametrize(("given", "stride"), [([0], 4), ([], 4), ([0], 16)])
@pytest.mark.parametrize("length", [10, 16, 17, 42, 44])
def test_sliding_losses_equal_a_pass_per_window(models, length, given, stride):
    """Also of windows that do not overlap: each begins with what is given."""
    model = models["diff_v2"]
    tokens = tokens_of(model, length)
    wanted, done = [], 0
    while done < length:
        end = min(16, length) if not done else min(done + stride, length)
        begin = max(0, done + stride - 16) if done else 0
        own = -plain_logprobs(model, [*given, *tokens[begin:end].tolist()]).numpy()
        first = 0 if done or given else 1  # without BOS nothing predicts the first token
        wanted.append(own[len(own) - (end - done - first) :])
        done = end
    for reader in (model, with_limits(model, chunk_logits=1), with_limits(model, chunk_tokens=8)):
        results = reader.sliding_losses(tokens, window=16, stride=stride, given=given)
        assert len(results) == length - (not given)
        close(results, np.concatenate(wanted))
