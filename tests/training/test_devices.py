"""One process per run, until training across devices is built."""

import pytest

from diffattn.errors import ConfigError
from diffattn.training.trainer import require_one_process


def test_a_distributed_launch_is_refused(monkeypatch):
    monkeypatch.setenv("WORLD_SIZE", "4")
    with pytest.raises(ConfigError, match=r"one process per run, got WORLD_SIZE=4\."):
        require_one_process()


@pytest.mark.parametrize("size", [None, "1"])
def test_one_process_is_enough(monkeypatch, size):
    monkeypatch.delenv("WORLD_SIZE", raising=False)
    if size is not None:
        monkeypatch.setenv("WORLD_SIZE", size)
    require_one_process()
