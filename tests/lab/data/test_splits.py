"""Splits: decided by names of files and texts of rows, stable, never empty."""

import random

import pytest

from diffattn.lab.data.corpora import Document
from diffattn.lab.data.splits import assign_splits


def make_documents(num_documents):
    return [Document(name=f"{i}.txt", text="a") for i in range(num_documents)]


def split_names(documents, fraction=0.2):
    splits = {"train": [], "validation": []}
    for split, document in assign_splits(documents, fraction):
        splits[split].append(document.name)
    return splits


def test_a_row_is_split_by_its_text():
    """Its name is a number, which a row added before it changes."""
    texts = [f"text {i % 100}" for i in range(200)]

    def splits(texts):
        rows = [Document(name=f"a:{i}", text=t, is_row=True) for i, t in enumerate(texts)]
        return {(document.text, split) for split, document in assign_splits(rows, 0.2)}

    results = splits(texts)
    assert len(results) == 100  # no text is in both
    assert 10 <= sum(split == "validation" for _, split in results) <= 30
    assert splits(["text 3", *texts]) == results


def test_split_of_a_file_depends_on_the_name_alone():
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
