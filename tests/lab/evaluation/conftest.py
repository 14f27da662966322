"""Language models small enough to evaluate in a test, and texts to read."""

import pytest

from icl_files import write_all
from language_models import build, build_windowed, model, models, text, tokenizer

__all__ = ["build", "build_windowed", "corpus", "haystack", "model", "models", "text", "tokenizer"]


@pytest.fixture(scope="session")
def haystack(tmp_path_factory, text):
    """A file to hide things in."""
    path = tmp_path_factory.mktemp("haystack") / "book.txt"
    path.write_text(text)
    return str(path)


@pytest.fixture(scope="session")
def corpus(tmp_path_factory, text):
    """A folder of three long texts."""
    folder = tmp_path_factory.mktemp("corpus")
    for i in range(3):
        (folder / f"{i}.txt").write_text(text[i * 3000 :], encoding="utf-8")
    return str(folder)


@pytest.fixture(scope="module")
def long_model(build):
    """A model that takes long texts."""
    return build("diff", max_length=8192)


@pytest.fixture(scope="session")
def sentences(text):
    """``sentences(first, count)``: so many of the text, from number ``first`` on."""
    return lambda first, count: ". ".join(text.split(". ")[first : first + count])


@pytest.fixture
def files(tmp_path):
    """Small copies of the classification data sets."""
    return write_all(tmp_path / "icl")
