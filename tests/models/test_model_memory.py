"""Memory: how much there is, and refusing what needs more."""

import resource

import pytest

from diffattn.errors import ConfigError
from diffattn.models import memory


def test_what_fits_passes_and_what_does_not_is_named():
    memory.require_memory("here", {"a": 4, "b": 6}, available=10)
    with pytest.raises(ConfigError) as caught:
        memory.require_memory("here", {"a": 10**9, "b": 3 * 10**12}, available=2 * 10**9)
    assert str(caught.value) == (
        "here: memory must hold 3.0 TB or more (b: 3.0 TB), got 2.0 GB available. "
        "Choose smaller sizes."
    )


def test_unknown_memory_refuses_nothing(monkeypatch):
    for name in ("_machine_bytes", "_container_bytes", "_process_bytes"):
        monkeypatch.setattr(memory, name, lambda: None)
    assert memory.available_bytes() is None
    memory.require_memory("here", {"a": 10**30})


def test_the_least_of_all_limits_counts(monkeypatch):
    limits = {"_machine_bytes": 30, "_container_bytes": 20, "_process_bytes": None}
    for name, value in limits.items():
        monkeypatch.setattr(memory, name, lambda value=value: value)
    assert memory.available_bytes() == 20


def test_this_machine_tells():
    available = memory.available_bytes()
    assert available is None or 10**6 < available < 10**15


def test_the_limit_of_the_process_counts(monkeypatch):
    limit = 1 << 50
    monkeypatch.setattr(memory.resource, "getrlimit", lambda kind: (limit, limit))
    left = memory._process_bytes()
    assert left is not None
    assert 0 < left <= limit
    unlimited = (resource.RLIM_INFINITY,) * 2
    monkeypatch.setattr(memory.resource, "getrlimit", lambda kind: unlimited)
    assert memory._process_bytes() is None
