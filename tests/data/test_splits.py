"""Splits: decided by names, stable, never empty."""

import random

import pytest

from diffattn.data.corpora import Document
from diffattn.data.splits import assign_splits


def make_documents(num_documents):
    return [Document(name=f"{i}.txt", text="a") for i in range(num_documents)]


def split_names(documents, fraction=0.2):
    splits = {"train": [], "validation": []}
    for split, document in assign_splits(documents, fraction):
        splits[split].append(document.name)
    return splits


def test_split_depends_on_the_name_alone():
    documents = make_documents(200)
    before, after = split_names(documents[:100]), split_names(documents)
    for split in before:
        assert set(before[split]) <= set(after[split])
    assert 20 <= len(after["validation"]) <= 60
    shuffled = random.Random(1).sample(documents, len(documents))
    assert set(split_names(shuffled)["validation"]) == set(after["validation"])


@pytest.mark.parametrize("fraction", [1e-12, 1 - 1e-12], ids=["validation", "train"])
@pytest.mark.parametrize("num_documents", [2, 3, 50])
def test_no_split_stays_empty(fraction, num_documents):
    """The one document that moves is the closest by hash, whatever the order."""
    documents = make_documents(num_documents)
    splits = split_names(documents, fraction)
    lone = "validation" if fraction < 0.5 else "train"
    assert len(splits[lone]) == 1
    assert sum(map(len, splits.values())) == num_documents
    assert split_names(documents[::-1], fraction)[lone] == splits[lone]
