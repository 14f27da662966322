"""A small corpus and a tiny run of every attention type."""

import random
from dataclasses import replace

import pytest

from diffattn.lab.catalog.models import TYPES
from diffattn.lab.training.config import (
    DataConfig,
    EngineConfig,
    GuardConfig,
    RunConfig,
    TrainConfig,
)
from diffattn.lab.training.prepare import prepare_data
from diffattn.lab.training.run import train
from diffattn.models.configuration_diff_transformer import DiffTransformerConfig
from small_corpus import random_text


@pytest.fixture(scope="session")
def corpus(tmp_path_factory):
    """Folder of 20 text files."""
    rng = random.Random(0)
    folder = tmp_path_factory.mktemp("corpus")
    for number in range(20):
        (folder / f"{number:02d}.txt").write_text(random_text(rng, 20), encoding="utf-8")
    return folder


@pytest.fixture(scope="session")
def data(corpus, tmp_path_factory):
    """The corpus packed once; read-only."""
    config = DataConfig(source=str(corpus), vocab_size=300, validation_fraction=0.2)
    return prepare_data(config, tmp_path_factory.mktemp("prepared") / "data")


@pytest.fixture(scope="session")
def make_run(data):
    """A run of 12 steps of 4 windows of 32 tokens, with policies of the guard, settings of the
    engine, and changes to its training settings."""

    def make(attention_type="diff", guard=None, engine=None, **changes):
        base = DiffTransformerConfig(
            attention_type="softmax",
            vocab_size=300,
            hidden_size=32,
            num_hidden_layers=2,
            num_heads=4,
            head_dim=8,
            max_position_embeddings=changes.get("seq_len", 32),
        )
        train = TrainConfig(
            num_steps=12,
            batch_tokens=128,
            seq_len=32,
            learning_rate=1e-2,
            final_learning_rate=1e-3,
            warmup_steps=2,
            log_every=3,
            evaluate_every=4,
            evaluation_tokens=256,
        )
        return RunConfig(
            name=f"{attention_type}-tiny",
            model=base.twin(attention_type).config,
            train=replace(train, **changes),
            data=data.config,
            guard=GuardConfig(**guard or {}),
            engine=EngineConfig(**engine or {}),
        )

    return make


@pytest.fixture(scope="session")
def finished(make_run, data, tmp_path_factory):
    """Run directory of each attention type, trained without interruption; read-only."""
    folder = tmp_path_factory.mktemp("finished")
    for attention_type in TYPES:
        train(make_run(attention_type), data, folder / attention_type)
    return folder
