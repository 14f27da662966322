"""The models whose caches are compared, what they read, and how their logits are scored.

``recall``
    Noisy recall, almost as ``diffattn reproduce recall`` trains it. The score is the accuracy of
    all questions.
``text``
    Bytes of Python's library, recipe ``laptop`` with a model of recall's depth and width. The score
    is nats per byte of the 32 bytes that follow a prompt of 224.
"""

from dataclasses import replace
from functools import cache
from pathlib import Path

import torch
from torch import Tensor

from diffattn.lab.catalog.models import VARIANTS
from diffattn.lab.catalog.recipes.catalog import plan
from diffattn.lab.catalog.recipes.recall import RECALL
from diffattn.lab.data.tokens import TokenDataset
from diffattn.lab.training.config import RecallConfig, RunConfig
from diffattn.lab.training.prepare import PreparedData, open_data, prepare_data
from diffattn.lab.training.recall import TEST, held_out, train_recall
from diffattn.lab.training.run import train
from diffattn.lab.training.settings import apply_settings

TASKS = ("recall", "text")
_HELD_OUT = 128
"""Sequences of recall, to validate and again to test on."""
_WINDOWS = 64
"""Of held-out text."""
_TEXT = (
    "model.hidden_size=64",
    "model.num_hidden_layers=2",
    "model.num_heads=4",
    "train.num_steps=600",
)
"""Changes to the recipe ``laptop``."""
_PROMPT, _LENGTH = 224, 256
"""Bytes of a window before those that are scored, and with them."""


def recall_run(name: str, seed: int) -> RecallConfig:
    """A run of the laptop's recall study with less noise, 16 tokens of 24, to learn sooner."""
    settings = RECALL["laptop"]()
    run = settings["tasks"][0]
    task = replace(run.task, noise_ratio=2 / 3)
    training = replace(
        run.train,
        seq_len=task.seq_len,
        batch_tokens=run.train.batch_sequences * task.seq_len,
        evaluation_tokens=_HELD_OUT * task.seq_len,
    )
    rate = settings["member_rates"].get(name, settings["learning_rates"][0])
    model = VARIANTS[name].twin(run.model, "params").config
    return replace(run, name=name, task=task, model=model, train=training.at(rate, seed))


def text_run(name: str, seed: int) -> RunConfig:
    """A run of the smaller recipe ``laptop`` at its rate, by a twin of equal parameters."""
    run = apply_settings(plan("laptop").config(), _TEXT)
    model = VARIANTS[name].twin(run.model, "params").config
    training = run.train.at(run.train.learning_rate, seed)
    return replace(run, name=name, model=model, train=training)


@cache
def text_data(out: Path) -> PreparedData:
    """The tokens of all runs on text."""
    prepare_data(plan("laptop").config().data, out / "data")
    return open_data(out / "data", verify=False)


def trained(task: str, name: str, seed: int, out: Path) -> Path:
    """Train one model unless it is whole already; its folder."""
    folder = out / f"{task}-{name}-seed{seed}"
    if task == "recall":
        train_recall(recall_run(name, seed), folder)
    else:
        train(text_run(name, seed), text_data(out), folder)
    return folder


def inputs(task: str, out: Path) -> tuple[Tensor, Tensor]:
    """Held-out sequences, and the tokens that follow each of their last tokens."""
    if task == "recall":
        test = held_out(recall_run("softmax", 0), TEST)
        return test.input_ids, test.labels[:, -test.queries.shape[1] :]
    text = TokenDataset(text_data(out).validation, _LENGTH + 1)
    step = len(text) // _WINDOWS
    windows = torch.stack([text[i * step]["input_ids"] for i in range(_WINDOWS)])
    return windows[:, :-1], windows[:, _PROMPT + 1 :]


def score(task: str, logits: Tensor, labels: Tensor) -> float:
    """Accuracy of recall, or nats per byte of text."""
    if task == "recall":
        return float((logits.argmax(-1) == labels).double().mean())
    return float(torch.nn.functional.cross_entropy(logits.double().mT, labels))
