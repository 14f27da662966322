"""Count models equal their formulas, worked by hand and with dictionaries, and sum to 1."""

import itertools
import math
from collections import Counter, defaultdict

import numpy as np
import pytest

from diffattn.errors import ConfigError
from diffattn.lab.data import count_models
from diffattn.lab.data.count_models import COUNT_MODELS, Bigram, BigramCopy, count_losses

IDS = 12


def make_windows(n, length, ids=IDS - 2, seed=0):
    """Tokens of unequal frequency, four at most in a window, so that copies tell something.

    The two last ids of the vocabulary never occur by default.
    """
    rng = np.random.default_rng(seed)
    few = (rng.random((n, 4)) ** 2 * ids).astype(np.int64)
    return np.take_along_axis(few, (rng.random((n, length)) ** 2 * 4).astype(np.int64), axis=1)


def probability(train, window, place, weights=None):
    """Of one token by the bigrams, or with ``weights`` by bigrams and copies, from dictionaries."""
    targets = Counter(token for row in train for token in row[1:])
    unigram = (targets[window[place]] + len(targets) / IDS) / (targets.total() + len(targets))
    followers = defaultdict(Counter)
    for row in train:
        for first, second in itertools.pairwise(row):
            followers[first][second] += 1
    after = followers[window[place - 1]]
    bigram = unigram
    if after:
        bigram = (after[window[place]] + len(after) * unigram) / (after.total() + len(after))
    matches = [i + 1 for i in range(place - 1) if window[i] == window[place - 1]]
    if weights is None or not matches:
        return bigram
    copied = sum(window[i] == window[place] for i in matches) / len(matches)
    weight = weights[min(5, 1 + int(math.log2(len(matches))))]
    return (1 - weight) * bigram + weight * copied


def test_every_token_equals_dictionaries():
    train, windows = make_windows(30, 40), make_windows(4, 40, IDS, seed=1)
    copy = BigramCopy(train, IDS)
    assert (copy.weights[1:] > 0).all()
    bigram, mixed = Bigram(train, IDS).probabilities(windows), copy.probabilities(windows)
    rows = train.tolist()
    for i, window in enumerate(windows.tolist()):
        for place in range(1, 40):
            assert bigram[i, place - 1] == pytest.approx(probability(rows, window, place))
            expected = probability(rows, window, place, copy.weights)
            assert mixed[i, place - 1] == pytest.approx(expected)


@pytest.mark.parametrize("name", COUNT_MODELS)
def test_distributions_sum_to_one(name):
    model = COUNT_MODELS[name](make_windows(20, 30), IDS)
    for prefix in make_windows(20, 30, IDS, seed=2):  # some end with a token never seen
        windows = np.column_stack([np.tile(prefix, (IDS, 1)), np.arange(IDS)])
        last = model.probabilities(windows)[:, -1]
        assert (last > 0).all()
        assert last.sum() == pytest.approx(1, abs=1e-12)


def test_weights_are_the_most_likely_on_windows_that_the_bigrams_have_not_counted():
    train = make_windows(60, 50)
    model = BigramCopy(train, IDS)
    weights = model.weights
    model._bigram = Bigram(train[:54], IDS)

    def log_likelihood(bin_, weight):
        """With one more token in every bin that is no copy."""
        model.weights = weights.copy()
        model.weights[bin_] = weight
        return np.log(model.probabilities(train[54:])).sum() + np.log(1 - model.weights).sum()

    assert weights[0] == 0
    for bin_ in range(1, 6):
        assert 0 < weights[bin_] < 1
        best = log_likelihood(bin_, weights[bin_])
        for other in np.linspace(0, 0.99, 34):
            assert log_likelihood(bin_, other) <= best + 1e-6


def test_losses_are_those_of_all_windows_in_pieces(monkeypatch):
    train, windows = make_windows(20, 30), make_windows(7, 30, seed=4)
    model = BigramCopy(train, IDS)
    monkeypatch.setattr(count_models, "_PIECE", 3)
    losses = count_losses(model, windows)
    assert losses.loss == pytest.approx(-np.log(model.probabilities(windows)).mean(), rel=1e-12)
    assert sum(losses.parts()[f"quarter_{i}"]["tokens"] for i in (1, 2, 3, 4)) == 7 * 29


def test_one_window_cannot_weigh_copies():
    with pytest.raises(ConfigError, match=r"windows must be two or more, .* got 1"):
        BigramCopy(make_windows(1, 30), IDS)


def test_a_large_vocabulary_takes_memory_of_the_text_alone():
    """A table of all pairs would take 80 GB."""
    windows = np.random.default_rng(5).zipf(1.3, size=(200, 256)) % 100_000
    losses = count_losses(BigramCopy(windows[:190], 100_000), windows[190:])
    assert 0 < losses.loss < math.log(100_000)
