"""A text to hide things in, and a model that takes long ones."""

import pytest


@pytest.fixture(scope="module")
def haystack(tmp_path_factory, text):
    path = tmp_path_factory.mktemp("haystack") / "book.txt"
    path.write_text(text)
    return str(path)


@pytest.fixture(scope="module")
def long_model(build):
    return build("diff", max_length=4096)
