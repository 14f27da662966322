"""Shards of several processes are told from whole copies by the names of their files alone."""

import pytest

from continued_runs import stop
from diffattn.errors import ConfigError
from diffattn.training.engine import EngineConfig
from diffattn.training.sharding import require_same_parts
from diffattn.training.trainer import train


def test_shards_of_two_are_refused_by_one(make_run, data, tmp_path):
    config, folder = make_run("diff"), tmp_path / "run"
    stop(config, data, folder, 5)
    checkpoint = folder / "checkpoints" / "checkpoint-4"
    (checkpoint / "optimizer-0-of-2.safetensors").touch()
    with pytest.raises(ConfigError, match="must be 'fsdp', as in checkpoint-4, to continue"):
        train(config, data, folder)
    with pytest.raises(ConfigError, match="wrote checkpoint-4, 2, got WORLD_SIZE=1"):
        require_same_parts(checkpoint, EngineConfig(parallel="fsdp"))
