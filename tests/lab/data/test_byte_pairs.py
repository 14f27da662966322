"""tiktoken encodes only where its ids are those of the library that defines the tokenizer."""

import importlib.util
import json
import random

import pytest
from tokenizers import Tokenizer, pre_tokenizers

from diffattn.lab.data import byte_pairs
from diffattn.lab.data.byte_pairs import TextEncoder
from diffattn.lab.data.corpora import Document
from diffattn.lab.data.tokenizer import END_OF_TEXT, plain_encoder, train_tokenizer

WORDS = [
    "the",
    " noise",
    "'s",
    "'S",
    "42",
    "½",
    " é",
    "日本",
    "\U0001f600",
    "\t",
    "\n",
    "  ",
    "\r\n",
]
WORDS += ["…", "_x_", "\u00a0", "\u2028", "\x00", "\x1c", "\u0301", "\U000323af", END_OF_TEXT]


def random_texts(number, words, seed):
    rng = random.Random(seed)
    return ["".join(rng.choices(words, k=rng.randint(0, 40))) for _ in range(number)]


@pytest.fixture(scope="module")
def encoder():
    texts = random_texts(200, WORDS, seed=0)
    documents = [Document(name=str(i), text=text) for i, text in enumerate(texts)]
    return plain_encoder(train_tokenizer(documents, vocab_size=400))


def expected(encoder, texts):
    return [e.ids for e in encoder.encode_batch(texts, add_special_tokens=False)]


def listed(ids):
    return [of.tolist() for of in ids]


def changed(encoder, **settings):
    """The same tokenizer with other settings of its model, or other parts."""
    definition = json.loads(encoder.to_str())
    parts = {key: settings.pop(key) for key in list(settings) if key in definition}
    definition["model"] |= settings
    other = Tokenizer.from_str(json.dumps(definition | parts))
    other.encode_special_tokens = True
    return other


def test_ids_are_those_of_the_library(encoder):
    texts = [*random_texts(300, WORDS, seed=1), "", "\ud7ff\ue000\U0010ffff"]
    encode = TextEncoder(encoder)
    assert encode.fast
    assert listed(encode(texts)) == expected(encoder, texts)


@pytest.mark.scheduled
def test_every_character_of_unicode_has_the_librarys_ids(encoder):
    assigned = (*range(0xD800), *range(0xE000, 0x32400), *range(0xE0000, 0xE0200))
    characters = [*map(chr, assigned), *map(chr, range(0x32400, 0x110000, 97))]
    around = [f"a{c}1{c} {c}. {c}{c}  b'{c}" for c in characters]
    texts = ["".join(around[i : i + 1000]) for i in range(0, len(around), 1000)]
    assert listed(TextEncoder(encoder)(texts)) == expected(encoder, texts)


def test_a_character_that_the_libraries_class_differently_goes_the_slow_way(encoder, monkeypatch):
    ascii_letters = byte_pairs._PATTERN.replace(r" ?\p{L}+", " ?[a-z]+").replace(r"\p{L}", "a-z")
    monkeypatch.setattr(byte_pairs, "_PATTERN", ascii_letters)
    encode = TextEncoder(encoder)
    texts = ["the noise", "thé noise", "THE noise", "the 42"] * 2
    assert listed(encode(texts)) == expected(encoder, texts)
    fast = [encode._fast_ids(text) is not None for text in texts]
    assert fast == [True, False, False, True] * 2


def test_white_space_without_end_is_encoded_too(encoder):
    texts = [" " * 1_000_000 + "x"]
    assert listed(TextEncoder(encoder)(texts)) == expected(encoder, texts)


def test_a_token_that_its_own_bytes_do_not_reach_is_refused(encoder):
    """Of "thx" the merges make "th" and "x"; tiktoken goes on to "thx", whose bytes it knows."""
    letters = {c: i for i, c in enumerate(byte_pairs.BYTE_OF)}
    merges = [("t", "h"), ("h", "x"), ("t", "hx")]
    vocab = letters | {"th": 256, "hx": 257, "thx": 258}
    other = changed(encoder, vocab=vocab, merges=merges, added_tokens=[])
    assert expected(other, ["thx"]) == [[256, letters["x"]]]
    assert byte_pairs._tiktoken(
        bytes(byte_pairs.BYTE_OF[c] for c in token) for token in vocab
    ).encode_ordinary("thx") == [258]
    encode = TextEncoder(other)
    assert not encode.fast
    assert listed(encode(["thx"])) == expected(other, ["thx"])


@pytest.mark.parametrize(
    "settings",
    [
        {"normalizer": {"type": "Lowercase"}},
        {"ignore_merges": True},
        {"byte_fallback": True},
        {"pre_tokenizer": None},
        {"pre_tokenizer": json.loads(pre_tokenizers.Whitespace().__getstate__())},
        {"pre_tokenizer": json.loads(pre_tokenizers.ByteLevel(use_regex=False).__getstate__())},
        {"pre_tokenizer": json.loads(pre_tokenizers.ByteLevel().__getstate__())},
    ],
    ids=str,
)
def test_other_tokenizers_are_left_to_their_library(encoder, settings):
    other = changed(encoder, **settings)
    texts = random_texts(20, WORDS, seed=2)
    encode = TextEncoder(other)
    assert not encode.fast
    assert listed(encode(texts)) == expected(other, texts)


def test_an_added_word_is_left_to_the_library(encoder):
    other = changed(encoder)
    other.add_tokens(["the noise"])
    encode = TextEncoder(other)
    assert not encode.fast
    assert listed(encode(["the noise"])) == expected(other, ["the noise"])


def test_without_tiktoken_the_ids_are_the_same(encoder, monkeypatch):
    texts = random_texts(20, WORDS, seed=3)
    fast = listed(TextEncoder(encoder)(texts))
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    encode = TextEncoder(encoder)
    assert not encode.fast
    assert listed(encode(texts)) == fast
