"""Count models read what a run reads, and tell from which step it uses its context."""

import random
from dataclasses import replace

import numpy as np
import pytest

from diffattn.errors import ConfigError
from diffattn.lab.data.count_models import COUNT_MODELS, count_losses
from diffattn.lab.data.ngrams import PARTS
from diffattn.lab.data.tokens import TokenDataset
from diffattn.lab.studies.text.results import loss_curve, phase_step
from diffattn.lab.studies.text.summary import count_model_results
from diffattn.lab.training.config import DataConfig, TrainConfig
from diffattn.lab.training.prepare import prepare_data
from diffattn.lab.training.trainer import training_order
from small_corpus import WORDS

CONFIG = TrainConfig(num_steps=5, batch_tokens=128, seq_len=32, warmup_steps=2)


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    rng = random.Random(0)
    folder = tmp_path_factory.mktemp("corpus")
    for number in range(12):
        places = [rng.randrange(13)]
        for _ in range(250):  # most words have one that follows them
            places.append((places[-1] + 1) % 13 if rng.random() < 0.7 else rng.randrange(13))
        text = " ".join(WORDS[place] for place in places)
        (folder / f"{number:02d}.txt").write_text(text, encoding="utf-8")
    config = DataConfig(source=str(folder), vocab_size=300, validation_fraction=0.2)
    return prepare_data(config, tmp_path_factory.mktemp("prepared") / "data")


def windows(split):
    return np.stack([item["input_ids"].numpy() for item in TokenDataset(split, 32)])


def test_a_run_that_reads_everything_counts_everything_once(data):
    train, validation = windows(data.train), windows(data.validation)
    ids = data.train.metadata["vocab_size"]
    twice = replace(CONFIG, num_steps=2 * len(train) // CONFIG.batch_sequences + 1)
    results = count_model_results(twice, data)
    assert list(results) == ["unigram", "bigram", "bigram_copy"]
    for name, entry in results.items():
        losses = count_losses(COUNT_MODELS[name](train, ids), validation)
        parts = {part: value["loss"] for part, value in losses.parts().items()}
        assert (entry["loss"], entry["parts"]) == (losses.loss, parts)
        assert set(parts) == set(PARTS)
    assert results["bigram"]["loss"] < results["unigram"]["loss"]


def test_a_short_run_counts_its_own_windows(data):
    losses = {
        name: [count_model_results(config, data)[name]["loss"] for config in configs]
        for configs in [(CONFIG, replace(CONFIG, num_steps=30), replace(CONFIG, data_seed=1))]
        for name in COUNT_MODELS
    }
    for short, long, other in losses.values():
        assert long < short
        assert other != short
    assert count_model_results(CONFIG, data) == count_model_results(CONFIG, data)


def test_the_windows_of_the_curves_are_counted_apart(data):
    """Four of the validation windows, as evaluations during training read them."""
    config = replace(CONFIG, evaluation_tokens=4 * 32 + 1)
    counted, whole = count_model_results(config, data), count_model_results(CONFIG, data)
    validation = windows(data.validation)
    assert len(validation) > 8
    places = [i * len(validation) // 4 for i in range(4)]
    read = training_order(TokenDataset(data.train, 32), config).indices
    seen = windows(data.train)[sorted(set(read))]
    bigram = COUNT_MODELS["bigram"](seen, data.train.metadata["vocab_size"])
    assert counted["bigram"]["curve"]["loss"] == count_losses(bigram, validation[places]).loss
    assert counted["bigram"]["loss"] == whole["bigram"]["loss"]
    assert whole["bigram"]["curve"] == {key: whole["bigram"][key] for key in ("loss", "parts")}


def test_a_run_of_one_window_is_refused(data):
    row = replace(CONFIG, num_steps=1, batch_tokens=32, warmup_steps=0)
    with pytest.raises(ConfigError, match="windows must be two or more"):
        count_model_results(row, data)


def rows_of(*losses):
    """Validation rows every 10 steps, each after a row of training."""
    rows = []
    for step, loss in zip(range(0, 1000, 10), losses, strict=False):
        parts = {"repeated_bigram": loss, "quarter_1": 0.0}
        rows += [{"step": step, "train_loss": 0.1}, {"step": step, "validation_parts": parts}]
    return rows


@pytest.mark.parametrize(
    ("losses", "step"),
    [
        ((5.0, 4.0, 1.9, 1.5, 1.0), 20),
        ((1.0, 1.0), 0),
        ((5.0, 1.9, 2.1, 1.9, 1.8), 30),  # once is luck
        ((5.0, 2.0, 2.0, 1.9), None),  # the threshold is not below itself; the last stands alone
        ((5.0, 4.0, 1.0), None),
        ((), None),
    ],
)
def test_first_of_two_evaluations_below_the_threshold(losses, step):
    never_repeated = {"step": 5, "validation_parts": {"first_occurrence": 0.1}}
    curve = loss_curve([*rows_of(*losses), never_repeated], "repeated_bigram")
    assert phase_step(curve, 2.0) == step
