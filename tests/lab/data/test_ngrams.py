"""Repeats and counts of n-grams equal those of plain dictionaries."""

import random
from collections import Counter

import numpy as np
import pytest

from diffattn.errors import ConfigError
from diffattn.lab.data.ngrams import NgramCounts, earlier_counts, gaps, ngram_keys


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
    assert counts.counts_of(keys).tolist() == [seen[gram] for gram in grams(text, n)]


def test_too_many_ids_are_refused():
    ngram_keys(row(9, 100, 0), 3, 2_000_000)
    with pytest.raises(ConfigError, match="63 bits"):
        ngram_keys(row(9, 100, 0), 4, 2_000_000)


def test_keys_and_earlier_counts_of_many_rows_are_those_of_each():
    rows = np.stack([row(200, 5, seed) for seed in range(6)])
    keys = ngram_keys(rows, 2, 5)
    counts = earlier_counts(keys)
    for tokens, row_keys, row_counts in zip(rows, keys, counts, strict=True):
        assert row_keys.tolist() == ngram_keys(tokens, 2, 5).tolist()
        seen, expected = Counter(), []
        for gram in grams(tokens, 2):
            expected.append(seen[gram])
            seen[gram] += 1
        assert row_counts.tolist() == expected
    for empty in ((0, 5), (3, 0)):
        assert earlier_counts(np.zeros(empty, np.int64)).shape == empty
