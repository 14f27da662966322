"""Words of RULER's lists: where they come from, and that none is counted for another."""

import random
import re

import pytest

from diffattn.errors import ConfigError
from diffattn.lab.evaluation.long_context.ruler.ruler import Ruler
from diffattn.lab.evaluation.long_context.ruler.words import (
    ADJECTIVES,
    NOUNS,
    coined_words,
    word_list,
)


def test_the_lists_of_keys_hold_different_words():
    for words in (ADJECTIVES, NOUNS):
        assert len(set(words)) == len(words)
        assert all(re.fullmatch(r"[a-z]+", word) for word in words)
    assert f"{len(ADJECTIVES)} by {len(NOUNS)}" in Ruler.choices["keys"]


def test_coined_words_are_of_one_length_and_begin_alike():
    words = coined_words(5_000, random.Random(0))
    assert len(set(words)) == 5_000
    assert {len(word) for word in words} == {6}
    assert coined_words(100, random.Random(0)) == words[:100]
    assert word_list("coined").draw(100, random.Random(0)) == words[:100]


def test_words_of_this_python_are_words_and_lie_apart():
    known = word_list("python")
    assert len(known.words) > 500
    assert {"between", "result", "number"} & set(known.words)
    assert all(re.fullmatch(r"[a-z]{5,9}", word) for word in known.words)
    drawn = known.draw(400, random.Random(0))
    text = " ".join(drawn)
    assert all(text.count(word) == 1 for word in drawn)


def test_pairs_follow_where_words_are_spent():
    known = word_list("python")
    count = len(known.words)
    drawn = known.draw(count + 300, random.Random(0))
    assert len(set(drawn)) == count + 300
    assert drawn[:50] == known.draw(50, random.Random(0))
    assert all(re.fullmatch(r"[a-z]+-[a-z]+", pair) for pair in drawn[count:])
    assert not any(word in pair for word in known.words for pair in drawn[count:])


def test_words_of_a_haystack():
    rare = ("onlyonce", "Capital", "Capital", "x2", "x2")
    syllables = [a + b for a in "bdfgklmnprst" for b in "aeiou"]
    common = [first + second + "n" for first in syllables[:9] for second in syllables[20:30]]
    known = word_list("haystack", (*common, *(f"{word}," for word in common), *rare))
    assert set(known.words) == set(common)
    with pytest.raises(ConfigError, match=r"word_list 'haystack' must give 60 words .* got 0"):
        word_list("haystack", ("Short", "text."))
