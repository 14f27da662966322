"""A hub that does not answer costs seconds, and its cache is used."""

import time

import pytest

from diffattn.errors import CheckpointError
from diffattn.lab.data.corpora import Document
from diffattn.lab.data.tokenizer import train_tokenizer
from diffattn.models import loading
from diffattn.models.loading import load_model
from model_folders import edit_config


class NoNetwork:
    """A client whose every request waits for long."""

    def head(self, address, *, timeout):
        time.sleep(60)


@pytest.fixture(autouse=True)
def no_network(monkeypatch):
    monkeypatch.setattr(loading, "get_session", NoNetwork)
    monkeypatch.setattr(loading, "_PATIENCE_SECONDS", 0.1)


def test_the_hub_is_not_waited_for():
    began = time.monotonic()
    with pytest.raises(CheckpointError, match=r"nobody/gpt2: no folder .* Name a local folder"):
        load_model("nobody/gpt2")
    assert time.monotonic() - began < 10


def test_the_cache_is_read_and_its_files_are_checked(make_config, build, monkeypatch, tmp_path):
    monkeypatch.setattr(loading.constants, "HF_HUB_CACHE", str(tmp_path))
    place = tmp_path / "models--nobody--tiny"
    snapshot = place / "snapshots" / "0123"
    build(make_config("diff", vocab_size=300)).save_pretrained(snapshot, max_shard_size="8KB")
    documents = [Document(name="a", text="the city " * 50)]
    train_tokenizer(documents, vocab_size=280).save_pretrained(snapshot)
    (place / "refs").mkdir()
    (place / "refs" / "main").write_text("0123")
    for name in (str(tmp_path), "./nobody/tiny"):
        assert loading.name_or_cached(name) == name
    assert loading.name_or_cached("nobody/tiny") == str(snapshot)
    load_model("nobody/tiny")
    edit_config(snapshot, num_heads=10**8)
    with pytest.raises(CheckpointError, match=r"nobody/tiny/config\.json: num_heads must fit"):
        load_model("nobody/tiny")
