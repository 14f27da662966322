"""Language models small enough for many trials."""

import pytest

from language_models import build, models, text, tokenizer

__all__ = ["build", "models", "text", "tokenizer"]


@pytest.fixture(scope="module")
def whole(build, tmp_path_factory):
    """``whole(kind)``: a sound model folder."""
    folders = {}

    def of(kind):
        if kind not in folders:
            folders[kind] = tmp_path_factory.mktemp(kind)
            model = build(kind)
            model.network.save_pretrained(folders[kind])
            model.tokenizer.save_pretrained(folders[kind])
        return folders[kind]

    return of
