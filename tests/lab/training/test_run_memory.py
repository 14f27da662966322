"""A run that does not fit is refused by the count that ``diffattn plan`` shows."""

from dataclasses import replace

import pytest

from diffattn.errors import ConfigError
from diffattn.lab.training.config import DataConfig, EngineConfig, RunConfig, TrainConfig
from diffattn.lab.training.planning import search
from diffattn.lab.training.planning.plan import device_phases
from diffattn.lab.training.planning.step_memory import largest, step_memory
from diffattn.models import memory as machine
from diffattn.models.configuration_diff_transformer import DiffTransformerConfig
from diffattn.models.twins import parameter_count

MODEL = DiffTransformerConfig(
    attention_type="diff",
    vocab_size=300,
    hidden_size=32,
    num_hidden_layers=1,
    num_heads=2,
    head_dim=8,
    max_position_embeddings=64,
    attention_backend="reference",
)
RUN = RunConfig(
    name="fitted",
    model=MODEL,
    train=TrainConfig(num_steps=30, batch_tokens=512, seq_len=64),
    data=DataConfig(vocab_size=300),
)


def with_memory(monkeypatch, available):
    for module in (machine, search):
        monkeypatch.setattr(module, "available_bytes", lambda: available)
    monkeypatch.setattr(search.torch.cuda, "is_available", lambda: False)


def test_the_count_of_the_step_decides_between_the_bounds(monkeypatch):
    step = step_memory(MODEL, RUN.train, sequences=8, accumulates=False, device="cpu")
    needed = sum(step.peak.values())
    with_memory(monkeypatch, int(needed * 1.1))
    search.require_run_memory(RUN)
    with_memory(monkeypatch, int(needed * 0.95))
    with pytest.raises(ConfigError, match=r"training: memory must hold .* \(activations: "):
        search.require_run_memory(RUN)
    with_memory(monkeypatch, int(needed * 1.1))
    with pytest.raises(ConfigError, match="training: memory must hold"):
        search.require_run_memory(RUN, side_by_side=2)


def test_what_sizes_tell_is_not_counted(monkeypatch):
    monkeypatch.setattr(search, "RunMemory", None)  # calling it would fail
    with_memory(monkeypatch, 10**9)
    search.require_run_memory(RUN)
    with_memory(monkeypatch, 1000)
    with pytest.raises(ConfigError, match=r"training: memory must hold .* \(logits: "):
        search.require_run_memory(RUN)


LAUNCH = {"RANK": "5", "LOCAL_RANK": "1", "MASTER_ADDR": "localhost", "MASTER_PORT": "1"}


@pytest.fixture
def gpus(monkeypatch):
    """Two processes on a machine of two GPUs, which they are made to share; says what was asked."""
    for name, value in (LAUNCH | {"WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2"}).items():
        monkeypatch.setenv(name, value)
    asked = []
    cuda = search.torch.cuda
    monkeypatch.setattr(cuda, "is_available", lambda: True)
    monkeypatch.setattr(cuda, "device_count", lambda: 2)
    monkeypatch.setattr(cuda, "set_device", lambda device: asked.append(f"take {device}"))
    monkeypatch.setattr(cuda, "mem_get_info", lambda: asked.append("memory") or (10**12, 10**12))
    return asked


def test_a_process_takes_its_gpu_before_it_asks_for_memory(gpus, monkeypatch):
    search.require_run_memory(RUN)
    assert gpus[0] == "take 1"
    assert "memory" in gpus
    monkeypatch.setenv("LOCAL_RANK", "2")
    gpus.clear()
    with pytest.raises(ConfigError, match=r"--nproc-per-node must be at most 2, .* LOCAL_RANK=2"):
        search.require_run_memory(RUN)
    assert gpus == []


@pytest.mark.parametrize(("parallel", "copies"), [("ddp", 2), ("fsdp", 1)])
def test_weights_that_begin_in_main_memory_are_counted_there(parallel, copies, gpus, monkeypatch):
    model = DiffTransformerConfig(**MODEL.settings() | {"hidden_size": 2048})
    run = replace(RUN, model=model, engine=EngineConfig(parallel=parallel))
    weights = copies * 4 * parameter_count(model)
    monkeypatch.setattr(machine, "available_bytes", lambda: int(1.01 * weights))
    search.require_run_memory(run)
    monkeypatch.setattr(machine, "available_bytes", lambda: int(0.99 * weights))
    with pytest.raises(ConfigError, match=r"\(weights before they move to the GPU: "):
        search.require_run_memory(run)


def test_processes_of_one_machine_share_its_memory(monkeypatch):
    with_memory(monkeypatch, 10**9)
    for name, value in (LAUNCH | {"WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "1"}).items():
        monkeypatch.setenv(name, value)
    step = step_memory(MODEL, RUN.train, sequences=4, accumulates=False, device="cpu")
    needed = sum(largest(device_phases(step, devices=2, shards=1)).values())
    with_memory(monkeypatch, int(needed * 1.1))
    search.require_run_memory(RUN)
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "2")
    with pytest.raises(ConfigError, match="training: memory must hold"):
        search.require_run_memory(RUN)
