"""Words of RULER's lists: where they come from, and that none is counted for another."""

import itertools
import random
import re

from diffattn.lab.evaluation.long_context.ruler.ruler import Ruler
from diffattn.lab.evaluation.long_context.ruler.words import ADJECTIVES, NOUNS, WordList, word_list

SYLLABLES = [consonant + vowel for consonant in "bdfghjklmnprstvz" for vowel in "aeiou"]
MADE_UP = WordList("a file", tuple(map("".join, itertools.islice(
    itertools.product(SYLLABLES, repeat=3), 0, None, 37
))), goes_on=True)  # fmt: skip
"""Words of one length, so that none lies within another."""


def test_the_lists_of_keys_hold_different_words():
    for words in (ADJECTIVES, NOUNS):
        assert len(set(words)) == len(words)
        assert all(re.fullmatch(r"[a-z]+", word) for word in words)
    assert f"{len(ADJECTIVES)} by {len(NOUNS)}" in Ruler.choices["keys"]


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
