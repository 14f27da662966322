"""Repeats and counts of n-grams equal those of plain dictionaries."""

import random
from collections import Counter

import numpy as np
import pytest

from diffattn.errors import ConfigError
from diffattn.evaluation.perplexity.loss_slices import Slices, slice_losses
from diffattn.evaluation.perplexity.ngrams import NgramCounts, gaps, ngram_keys


def row(length, vocab_size, seed):
    return np.random.default_rng(seed).integers(0, vocab_size, size=length)


def grams(tokens, n):
    return [tuple(tokens[i : i + n].tolist()) for i in range(len(tokens) - n + 1)]


@pytest.mark.parametrize("n", [1, 2, 3])
def test_keys_tell_n_grams_apart(n):
    tokens = row(400, 5, n)
    keys = ngram_keys(tokens, n, 5)
    assert len(set(zip(keys.tolist(), grams(tokens, n), strict=True))) == len(set(keys.tolist()))
    assert len(set(grams(tokens, n))) == len(set(keys.tolist()))
    assert len(ngram_keys(tokens[: n - 1], n, 5)) == 0


def test_gaps_equal_a_walk_with_a_dictionary():
    for seed in range(20):
        keys = ngram_keys(row(random.Random(seed).randrange(2, 300), 6, seed), 2, 6)
        last, expected = {}, []
        for i, key in enumerate(keys.tolist()):
            expected.append(i - last[key] if key in last else 0)
            last[key] = i
        assert gaps(keys).tolist() == expected
    assert gaps(np.zeros(0, np.int64)).tolist() == []


@pytest.mark.parametrize("n", [2, 3])
@pytest.mark.parametrize("piece", [1, 2, 7, 1000])
def test_counts_are_exact_however_the_stream_is_cut(n, piece):
    train, text = row(1000, 8, 0), row(200, 9, 1)  # id 8 is never seen in training
    keys = ngram_keys(text, n, 9)
    counts = NgramCounts(keys, n, 9)
    counts.add(train[i : i + piece].astype(np.uint16) for i in range(0, 1000, piece))
    seen = Counter(grams(train, n))
    assert counts.of(keys).tolist() == [seen[gram] for gram in grams(text, n)]


def test_too_many_ids_are_refused():
    ngram_keys(row(9, 100, 0), 3, 2_000_000)
    with pytest.raises(ConfigError, match="63 bits"):
        ngram_keys(row(9, 100, 0), 4, 2_000_000)


def test_bins_part_the_tokens():
    losses = np.arange(1.0, 10.0)
    slices = Slices(losses)
    sizes = np.array([0, 1, 2, 3, 4, 7, 8, 15, 16])
    slices.add_by_size("size", sizes, np.ones(9, bool))
    assert slices.sums["size"] == {
        "0": [1, 1.0], "1": [1, 2.0], "2": [2, 7.0], "4": [2, 11.0], "8": [2, 15.0], "16": [1, 9.0]
    }  # fmt: skip
    table = slice_losses([{"tokens": 9, "slices": slices.sums}], "size")
    assert [(one["from"], one["to"]) for one in table[:3]] == [(0, 0), (1, 1), (2, 3)]
    assert sum(one["nll"] * one["share"] for one in table) == pytest.approx(losses.mean())
