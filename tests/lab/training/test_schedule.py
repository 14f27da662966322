"""Which parameters decay, and the learning rate of every step."""

import itertools
from dataclasses import replace

import pytest
import torch

from diffattn.lab.catalog.models import TYPES
from diffattn.lab.training.config import TrainConfig
from diffattn.lab.training.trainer import (
    learning_rate_factor,
    optimizer_and_scheduler,
    parameter_groups,
)
from diffattn.models.configuration_diff_transformer import DiffTransformerConfig
from diffattn.models.modeling_diff_transformer import DiffTransformerForCausalLM

# Last parts of parameter names that must not decay; all others are matrices and must.
UNDECAYED = ("lambda_q1", "lambda_k1", "lambda_q2", "lambda_k2", "head_norm.weight", "bias")
UNDECAYED += ("input_layernorm.weight", "post_attention_layernorm.weight", "model.norm.weight")


@pytest.mark.parametrize("attention_type", TYPES)
def test_lambda_norms_and_biases_are_not_decayed(attention_type):
    config = DiffTransformerConfig(
        attention_type=attention_type,
        vocab_size=50,
        hidden_size=32,
        num_hidden_layers=2,
        num_heads=2,
        head_dim=8,
        head_norm=True,
        lambda_bias=attention_type == "diff_v2",
    )
    model = DiffTransformerForCausalLM(config)
    decayed, undecayed = parameter_groups(model, 0.1)
    assert (decayed["weight_decay"], undecayed["weight_decay"]) == (0.1, 0.0)
    names = {id(p): name for name, p in model.named_parameters()}
    groups = [names[id(p)] for p in undecayed["params"]]
    assert groups == [name for name in names.values() if name.endswith(UNDECAYED)]
    seen = [*decayed["params"], *undecayed["params"]]
    assert sorted(names[id(p)] for p in seen) == sorted(names.values())  # each exactly once
    kinds = {name.rsplit(".", 2)[-1] for name in groups}
    if attention_type in ("diff", "shared_diff"):
        assert kinds >= {"lambda_q1", "lambda_k2"}
    if attention_type == "diff_v2":
        assert "bias" in kinds
    assert any("head_norm" in name for name in groups)


CONFIG = TrainConfig(
    num_steps=100, learning_rate=2e-3, final_learning_rate=5e-4, warmup_steps=10, weight_decay=0.3
)


def test_schedule_rises_to_the_peak_and_falls_to_the_floor():
    rates = [2e-3 * learning_rate_factor(step, CONFIG) for step in range(100)]
    assert rates[0] == pytest.approx(2e-3 / 11)  # the first step already moves
    assert rates[9] == pytest.approx(2e-3 * 10 / 11)
    assert rates[10] == 2e-3
    assert rates[99] == pytest.approx(5e-4)
    differences = [b - a for a, b in itertools.pairwise(rates)]
    assert differences[:10] == pytest.approx([2e-3 / 11] * 10)
    assert differences[10:] == pytest.approx([-1.5e-3 / 89] * 89)
    assert learning_rate_factor(1_000, CONFIG) == pytest.approx(0.25)  # never below the floor


@pytest.mark.parametrize(("warmup_steps", "num_steps"), [(0, 1), (0, 2), (1, 2), (5, 6)])
def test_shortest_schedules(warmup_steps, num_steps):
    config = replace(CONFIG, warmup_steps=warmup_steps, num_steps=num_steps)
    rates = [learning_rate_factor(step, config) for step in range(num_steps)]
    assert max(rates) == rates[warmup_steps] == 1.0
    assert min(rates) > 0


def test_optimizer_takes_the_schedule_and_the_settings():
    model = torch.nn.Linear(2, 2)
    optimizer, scheduler = optimizer_and_scheduler(model, CONFIG)
    for step in range(100):
        expected = 2e-3 * learning_rate_factor(step, CONFIG)
        assert [group["lr"] for group in optimizer.param_groups] == [expected, expected]
        optimizer.step()
        scheduler.step()
    assert isinstance(optimizer, torch.optim.AdamW)
    assert [group["betas"] for group in optimizer.param_groups] == [(0.9, 0.95)] * 2
    assert [group["weight_decay"] for group in optimizer.param_groups] == [0.3, 0.0]
