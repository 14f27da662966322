"""A hub that does not answer costs seconds, and its cache is used."""

import time

import pytest

from diffattn.errors import CheckpointError
from diffattn.models import hub
from diffattn.models.loading import load_model


class NoNetwork:
    """A client whose every request waits for long."""

    def head(self, address, *, timeout):
        time.sleep(60)


@pytest.fixture(autouse=True)
def no_network(monkeypatch):
    monkeypatch.setattr(hub, "get_session", NoNetwork)
    monkeypatch.setattr(hub, "_PATIENCE_SECONDS", 0.1)


@pytest.mark.parametrize("name", ["gpt2-of-nobody", "nobody/gpt2"])
def test_the_hub_is_not_waited_for(name):
    began = time.monotonic()
    with pytest.raises(CheckpointError, match=f"{name}: no folder .* Name a local folder"):
        load_model(name)
    assert time.monotonic() - began < 10


def test_the_cache_is_read(monkeypatch, tmp_path):
    place = tmp_path / "models--nobody--gpt2"
    snapshot = place / "snapshots" / "0123"
    snapshot.mkdir(parents=True)
    (place / "refs").mkdir()
    (place / "refs" / "main").write_text("0123")
    monkeypatch.setattr(hub.constants, "HF_HUB_CACHE", str(tmp_path))
    assert hub.name_or_cached("nobody/gpt2") == str(snapshot)
    for path in (str(tmp_path), "./nobody/gpt2"):
        assert hub.name_or_cached(path) == path
