"""Runs that are interrupted, or that meet a bad batch."""

from dataclasses import replace

import pytest
import torch

from continued_runs import stop
from diffattn.lab.data.tokens import TokenDataset
from diffattn.lab.training.config import GuardConfig
from diffattn.lab.training.engine import EngineConfig
from diffattn.lab.training.loop.data_order import training_order
from diffattn.lab.training.loop.trainer import RunTrainer


@pytest.fixture
def stopped(data):
    """``stopped(config, folder, step)``: a run that was killed in a step."""

    return lambda config, folder, step: stop(config, data, folder, step)


@pytest.fixture(scope="session")
def guarded(make_run):
    """A run of ``make_run`` with policies of the guard, or settings of the engine."""

    def make(attention_type="diff", guard=None, engine=None, **changes):
        policies = {"guard": GuardConfig(**guard or {}), "engine": EngineConfig(**engine or {})}
        return replace(make_run(attention_type, **changes), **policies)

    return make


@pytest.fixture
def bad_batches(data, monkeypatch):
    """``bad_batches(config, {step: do})``: ``do(model, loss)`` makes the loss of a step's batch."""

    real = RunTrainer.compute_loss

    def install(config, faults):
        order = training_order(TokenDataset(data.train, config.train.seq_len), config.train)
        size = config.train.batch_sequences
        first = {step: order[(step - 1) * size]["input_ids"] for step in faults}

        def compute_loss(self, model, inputs, *args, **kwargs):
            loss = real(self, model, inputs, *args, **kwargs)
            for step, ids in first.items():
                if torch.equal(inputs["input_ids"][0].cpu(), ids):
                    loss = faults[step](model, loss)
            return loss

        monkeypatch.setattr(RunTrainer, "compute_loss", compute_loss)

    return install
