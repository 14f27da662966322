"""Shards of several processes are told from whole copies by the names of their files alone."""

import pytest

from continued_runs import stop
from diffattn.errors import ConfigError
from diffattn.lab.training.engine import EngineConfig
from diffattn.lab.training.run import train
from diffattn.lab.training.sharding import require_same_parts


def test_shards_of_two_are_refused_by_one_and_by_three(make_run, data, tmp_path, monkeypatch):
    config, folder = make_run("diff"), tmp_path / "run"
    stop(config, data, folder, 5)
    checkpoint = folder / "checkpoints" / "checkpoint-4"
    (checkpoint / "optimizer-0-of-2.safetensors").touch()
    with pytest.raises(ConfigError, match="must be 'fsdp', as in checkpoint-4, to continue"):
        train(config, data, folder)
    sharded = EngineConfig(parallel="fsdp")
    with pytest.raises(ConfigError, match="'fsdp' must have several devices to shard over"):
        require_same_parts(checkpoint, sharded)
    monkeypatch.setenv("WORLD_SIZE", "3")
    with pytest.raises(ConfigError, match="as wrote checkpoint-4, 2, got 3"):
        require_same_parts(checkpoint, sharded)
