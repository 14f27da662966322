"""A small corpus, its tokenizer and its packing, made once."""

import random

import pytest

from diffattn.lab.data.corpora import Document
from diffattn.lab.data.packing import pack
from diffattn.lab.data.tokenizer import END_OF_TEXT, train_tokenizer


@pytest.fixture(scope="session")
def documents():
    rng = random.Random(0)
    return [
        Document(name=f"{i}.txt", text=f"{i} é {END_OF_TEXT} " + "ab cd\n" * rng.randint(0, 30))
        for i in range(60)
    ]


@pytest.fixture(scope="session")
def tokenizer(documents):
    return train_tokenizer(documents, vocab_size=280)


@pytest.fixture(scope="session")
def packed(documents, tokenizer, tmp_path_factory):
    """Folder of a packing with a fifth of the documents in validation."""
    out = tmp_path_factory.mktemp("packed")
    pack(documents, tokenizer, out, validation_fraction=0.2)
    return out
