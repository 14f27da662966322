"""One device per run, until training across devices is built."""

import pytest
import torch

from diffattn.errors import ConfigError
from diffattn.training.trainer import require_one_device


def test_several_processes_are_refused(monkeypatch):
    monkeypatch.setenv("WORLD_SIZE", "4")
    with pytest.raises(ConfigError, match=r"one device per run, got 4\."):
        require_one_device()


def test_several_gpus_are_refused(monkeypatch):
    monkeypatch.delenv("WORLD_SIZE", raising=False)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 8)
    with pytest.raises(ConfigError, match=r"got 8\. Choose one with CUDA_VISIBLE_DEVICES"):
        require_one_device()


@pytest.mark.parametrize("gpus", [0, 1])
def test_one_device_is_enough(monkeypatch, gpus):
    monkeypatch.delenv("WORLD_SIZE", raising=False)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: gpus)
    require_one_device()
