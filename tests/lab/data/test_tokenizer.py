"""Tokenizers: exact round trips, equal runs, hashes that survive what does not change ids."""

import random

import pytest

from diffattn.errors import ConfigError
from diffattn.lab.data.corpora import Document
from diffattn.lab.data.tokenizer import (
    END_OF_TEXT,
    load_tokenizer,
    plain_encoder,
    tokenizer_hash,
    train_tokenizer,
)


def make_documents(seed=0, num_documents=20):
    rng = random.Random(seed)
    words = ["".join(rng.choices("abcdefghij", k=rng.randint(1, 6))) for _ in range(200)]
    texts = [" ".join(rng.choices(words, k=100)) + "\n" for _ in range(num_documents)]
    return [Document(name=f"{i}.txt", text=text) for i, text in enumerate(texts)]


def random_text(seed):
    """Characters of every plane, control characters and unassigned ones among them."""
    rng = random.Random(seed)
    ranges = [(0, 0x80), (0x80, 0x800), (0x800, 0xD800), (0xE000, 0x10000), (0x10000, 0x110000)]
    return "".join(chr(rng.randrange(*rng.choice(ranges))) for _ in range(300))


@pytest.fixture(scope="module")
def tokenizer():
    return train_tokenizer(make_documents(), vocab_size=400)


def test_training_twice_gives_the_same_tokenizer(tokenizer):
    again = train_tokenizer(iter(make_documents()), vocab_size=400)
    other = train_tokenizer(make_documents(seed=1), vocab_size=400)
    assert tokenizer_hash(again) == tokenizer_hash(tokenizer) != tokenizer_hash(other)


TEXTS = ("", " a , b . don 't  \n\n\t x", "\r\n\0\x7f", "e\u0301 é \u200b\ufeff", "日本 🏳️‍🌈")


@pytest.mark.parametrize(
    "text",
    [*TEXTS, END_OF_TEXT, *(random_text(seed) for seed in range(4))],
    ids=lambda text: ascii(text[:10]),
)
def test_any_text_round_trips_exactly(tokenizer, text):
    ids = tokenizer.encode(text)
    assert tokenizer.decode(ids) == text
    assert max(ids, default=0) < len(tokenizer)
    assert tokenizer.decode(plain_encoder(tokenizer).encode(text).ids) == text


def test_saving_and_loading_keeps_ids_and_hash(tokenizer, tmp_path):
    tokenizer.save_pretrained(tmp_path)
    loaded = load_tokenizer(str(tmp_path))
    text = random_text(99)
    assert loaded.encode(text) == tokenizer.encode(text)
    assert loaded.decode(loaded.encode(" a , b")) == " a , b"
    assert tokenizer_hash(loaded) == tokenizer_hash(tokenizer)
    assert loaded.eos_token_id == loaded.pad_token_id == 0


def test_hash_ignores_the_padding_of_earlier_calls_but_not_the_end_token(tokenizer):
    mine = train_tokenizer(make_documents(), vocab_size=400)
    mine(["a", "a b c"], padding=True, truncation=True, max_length=2)
    assert tokenizer_hash(mine) == tokenizer_hash(tokenizer)
    mine.eos_token = "a"
    assert tokenizer_hash(mine) != tokenizer_hash(tokenizer)


def test_plain_encoder_takes_special_tokens_as_text_and_leaves_the_tokenizer_alone(tokenizer):
    encoder = plain_encoder(tokenizer)
    assert 0 not in encoder.encode(f"a{END_OF_TEXT}b").ids
    assert 0 in tokenizer.encode(f"a{END_OF_TEXT}b")


def test_missing_folder_is_refused_with_a_near_miss(tmp_path):
    (tmp_path / "tokenizer").mkdir()
    with pytest.raises(ConfigError, match=r"got none\. Did you mean '.*tokenizer'\?"):
        load_tokenizer(str(tmp_path / "tokeniser"))


@pytest.mark.parametrize("content", [None, "{broken", "{}", "[]"], ids=str)
def test_folder_without_a_tokenizer_is_refused_in_one_line(tmp_path, content):
    if content is not None:
        (tmp_path / "tokenizer.json").write_text(content)
    with pytest.raises(ConfigError, match="must be a folder with a tokenizer or a name") as caught:
        load_tokenizer(str(tmp_path))
    assert "\n" not in str(caught.value)


def test_tokenizer_without_a_backend_is_refused():
    with pytest.raises(ConfigError, match=r"must be a fast one .* got object"):
        tokenizer_hash(object())
