"""Texts of few words, for what a test trains."""

import random

import pytest

WORDS = ["the", "cat", "sat", "on", "a", "mat", "and", "saw", "one", "red", "dog", "by", "sea"]


def random_text(rng, num_lines):
    return "\n".join(" ".join(rng.choice(WORDS) for _ in range(12)) for _ in range(num_lines))


@pytest.fixture(scope="session")
def corpus(tmp_path_factory):
    """One text file; its tail is held out."""
    path = tmp_path_factory.mktemp("corpus") / "corpus.txt"
    path.write_text(random_text(random.Random(0), 300), encoding="utf-8")
    return path
