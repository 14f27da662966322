"""A model that takes long texts."""

import pytest


@pytest.fixture(scope="module")
def long_model(build):
    return build("diff", max_length=8192)
