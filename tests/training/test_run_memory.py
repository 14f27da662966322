"""A run that does not fit is refused by the count that ``diffattn plan`` shows."""

from dataclasses import replace

import pytest

from diffattn.errors import ConfigError
from diffattn.models import memory as machine
from diffattn.models.configuration_diff_transformer import DiffTransformerConfig
from diffattn.training import memory
from diffattn.training.config import DataConfig, RunConfig, TrainConfig
from diffattn.training.engine import EngineConfig
from diffattn.training.planning.step_memory import step_memory

MODEL = DiffTransformerConfig(
    attention_type="diff", vocab_size=300, hidden_size=32, num_hidden_layers=2, num_heads=2,
    head_dim=8, max_position_embeddings=64, attention_backend="reference",
)  # fmt: skip
RUN = RunConfig(
    name="fitted",
    model=MODEL,
    train=TrainConfig(num_steps=30, batch_tokens=512, seq_len=64),
    data=DataConfig(vocab_size=300),
)


def with_memory(monkeypatch, available):
    for module in (machine, memory):
        monkeypatch.setattr(module, "available_bytes", lambda: available)
    monkeypatch.setattr(memory.torch.cuda, "is_available", lambda: False)


def test_the_count_of_the_step_decides_between_the_bounds(monkeypatch):
    step = step_memory(MODEL, RUN.train, sequences=8, accumulates=False, device="cpu")
    needed = sum(step.peak.values())
    with_memory(monkeypatch, int(needed * 1.1))
    memory.require_run_memory(RUN)
    with_memory(monkeypatch, int(needed * 0.95))
    with pytest.raises(ConfigError, match=r"training: memory must hold .* \(activations: "):
        memory.require_run_memory(RUN)
    with_memory(monkeypatch, int(needed * 1.1))
    with pytest.raises(ConfigError, match="training: memory must hold"):
        memory.require_run_memory(RUN, side_by_side=2)


@pytest.mark.parametrize("available", [1000, 10**9])
def test_what_sizes_tell_is_not_counted(monkeypatch, available):
    def refuse_to_count(*args, **options):
        raise AssertionError("counted")

    monkeypatch.setattr(memory, "step_memory", refuse_to_count)
    with_memory(monkeypatch, available)
    if available == 1000:
        with pytest.raises(ConfigError, match=r"training: memory must hold .* \(logits: "):
            memory.require_run_memory(RUN)
    else:
        memory.require_run_memory(RUN)


def test_a_loss_in_chunks_is_counted_without_the_other_logits(monkeypatch):
    chunked = replace(RUN, engine=EngineConfig(loss_chunk_tokens=64))
    whole, parts = (
        sum(step.peak.values())
        for step in (
            step_memory(
                MODEL, RUN.train, sequences=8, accumulates=False, device="cpu",
                loss_chunk_tokens=chunk,
            )
            for chunk in (None, 64)
        )
    )  # fmt: skip
    assert parts < 0.9 * whole
    with_memory(monkeypatch, int(parts * 1.05))
    memory.require_run_memory(chunked)
    with pytest.raises(ConfigError, match="training: memory must hold"):
        memory.require_run_memory(RUN)
    with_memory(monkeypatch, int(parts * 0.95))
    with pytest.raises(ConfigError, match="training: memory must hold"):
        memory.require_run_memory(chunked)
