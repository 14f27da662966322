"""Runs that meet a bad batch."""

import pytest
import torch

from diffattn.lab.data.tokens import TokenDataset
from diffattn.lab.training.trainer import RunTrainer, training_order


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
