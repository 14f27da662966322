"""Documents of whole sentences."""

import pytest


@pytest.fixture(scope="session")
def sentences(text):
    """``sentences(first, count)``: so many of the text, from number ``first`` on."""
    return lambda first, count: ". ".join(text.split(". ")[first : first + count])
