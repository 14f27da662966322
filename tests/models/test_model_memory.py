"""Memory: how much there is, and refusing what needs more."""

import resource

import pytest

from diffattn.errors import ConfigError
from diffattn.models import memory


def test_too_large_a_need_is_refused():
    memory.require_memory("here", {"a": 4, "b": 6}, available=10)
    with pytest.raises(ConfigError) as caught:
        memory.require_memory("here", {"a": 10**9, "b": 3 * 10**12}, available=2 * 10**9)
    assert str(caught.value) == (
        "here: memory must hold 3.0 TB or more (b: 3.0 TB), got 2.0 GB available. "
        "Choose smaller sizes."
    )


@pytest.mark.parametrize(
    ("limits", "least"), [((30, 20, None), 20), ((30, None, 10), 10), ((None, None, None), None)]
)
def test_the_least_of_all_limits_counts(limits, least, monkeypatch):
    names = ("_machine_bytes", "_container_bytes", "_process_bytes")
    for name, value in zip(names, limits, strict=True):
        monkeypatch.setattr(memory, name, lambda value=value: value)
    assert memory.available_bytes() == least
    if least is None:  # unknown memory refuses nothing
        memory.require_memory("here", {"a": 10**30})


@pytest.mark.parametrize("limit", [1 << 50, resource.RLIM_INFINITY])
def test_the_limit_of_the_process_counts(limit, monkeypatch):
    monkeypatch.setattr(memory.resource, "getrlimit", lambda kind: (limit, limit))
    left = memory._process_bytes()
    assert (left is None) == (limit == resource.RLIM_INFINITY)
    available = memory.available_bytes()
    assert available is None or 10**6 < available < 10**15
