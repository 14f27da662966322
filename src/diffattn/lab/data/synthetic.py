"""Recall tasks made of random tokens: noisy recall, lookup, many shots.

Every batch depends only on its settings, a seed and an index. So compared models read the same
sequences at the same step, also after an interruption.
"""

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from diffattn.lab.data.recall_tasks import (
    LookupConfig,
    ManyShotConfig,
    NoisyRecallConfig,
    TaskConfig,
)

IGNORED = -100
"""The label of a position without a query, which the loss leaves out."""
HELD_OUT_SEED = 2**32
"""Seed of evaluation batches. It is above all training seeds, so no batch is in both."""


@dataclass(frozen=True, slots=True)
class RecallBatch:
    """Sequences and labels. Labels are not shifted: a label stands at the position of its query."""

    input_ids: Tensor  # int64 [B, T]
    labels: Tensor
    """int64 ``[B, T]``: the answer at the position of a query, else :data:`IGNORED`."""
    queries: Tensor
    """int64 ``[B, Q]``, positions of the queries in ascending order."""


def _noisy_recall(
    rng: np.random.Generator, config: NoisyRecallConfig, num_sequences: int
) -> RecallBatch:
    """Pairs at random positions in noise, then the queries, side by side, without answers."""
    keys, values, context = _hidden_pairs(rng, config, num_sequences, config.num_pairs)
    if config.replacement:
        asked = rng.integers(config.num_pairs, size=(num_sequences, config.num_queries))
    else:
        asked = _distinct(rng, num_sequences, config.num_pairs, config.num_queries)
    return _ask(
        context, np.take_along_axis(keys, asked, axis=1), np.take_along_axis(values, asked, axis=1)
    )


def _lookup(rng: np.random.Generator, config: LookupConfig, num_sequences: int) -> RecallBatch:
    pairs, shape = config.num_pairs, (num_sequences, config.num_queries)
    keys, values, context = _hidden_pairs(rng, config, num_sequences, config.num_keys)
    is_absent = rng.random(shape) < config.absent
    asked = rng.integers(pairs, size=shape)
    others = rng.integers(pairs, max(config.num_keys, pairs + 1), size=shape)
    answers = np.where(is_absent, config.not_there, np.take_along_axis(values, asked, axis=1))
    questions = np.take_along_axis(keys, np.where(is_absent, others, asked), axis=1)
    bos = np.zeros((num_sequences, 1), dtype=np.int64)
    return _ask(np.hstack([bos, context]), questions, answers)


@dataclass(frozen=True, slots=True)
class Shots:
    """Examples of a many-shot sequence, before they are laid out: tokens, int64 ``[B, n]``."""

    items: np.ndarray
    shown: np.ndarray
    """The labels in the sequence, some of them wrong."""
    answers: np.ndarray
    """The right labels."""

    def batch(self) -> RecallBatch:
        """Lay out BOS, then items and labels in turn, without the label of the last item."""
        ids = np.zeros((len(self.items), 2 * self.items.shape[1] + 1), dtype=np.int64)
        ids[:, 1::2], ids[:, 2::2] = self.items, self.shown
        queries = np.broadcast_to(np.arange(1, ids.shape[1], 2), self.items.shape)
        return _batch(ids[:, :-1], queries, self.answers)


def many_shots(config: ManyShotConfig, num_sequences: int, *, seed: int, index: int = 0) -> Shots:
    """Draw classes, labels, items and noisy labels. For the arguments see :func:`generate`."""
    rng = np.random.default_rng([seed, index])
    count, shape = config.num_classes, (num_sequences, config.num_shots)
    classes = _distinct(rng, num_sequences, config.known_classes, count)
    labels = _distinct(rng, num_sequences, config.num_labels, count)
    labels += config.first_label
    which = rng.integers(count, size=shape)
    items = 1 + np.take_along_axis(classes, which, axis=1) * config.items_per_class
    items += rng.integers(config.items_per_class, size=shape)
    is_noisy = rng.random((num_sequences, 1)) < config.noisy
    is_wrong = (rng.random(shape) < config.wrong) & is_noisy
    others = (which + rng.integers(1, count, size=shape)) % count
    shown = np.take_along_axis(labels, np.where(is_wrong, others, which), axis=1)
    return Shots(items, shown, np.take_along_axis(labels, which, axis=1))


def generate(config: TaskConfig, num_sequences: int, *, seed: int, index: int = 0) -> RecallBatch:
    """Draw the batch with an index in the stream of a seed; both are 0 or more."""
    rng = np.random.default_rng([seed, index])
    if isinstance(config, NoisyRecallConfig):
        return _noisy_recall(rng, config, num_sequences)
    if isinstance(config, LookupConfig):
        return _lookup(rng, config, num_sequences)
    return many_shots(config, num_sequences, seed=seed, index=index).batch()


def _distinct(rng: np.random.Generator, num_rows: int, num_items: int, count: int) -> np.ndarray:
    """``[num_rows, count]`` indices, drawn one after the other without replacement."""
    # Gumbel top-k: the smallest of equally distributed numbers, in order, are successive draws.
    scores = -rng.gumbel(size=(num_rows, num_items))
    best = np.argpartition(scores, count - 1, axis=1)[:, :count]
    order = np.take_along_axis(scores, best, axis=1).argsort(axis=1)
    return np.take_along_axis(best, order, axis=1)


def _hidden_pairs(
    rng: np.random.Generator, config: NoisyRecallConfig | LookupConfig, num_rows: int, num_keys: int
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Keys ``[B, num_keys]``, values ``[B, P]``, and noise with P pairs ``[B, context_len]``."""
    pairs = config.num_pairs
    keys = 1 + _distinct(rng, num_rows, config.num_keys, num_keys)
    first_value = 1 + config.num_keys
    values = first_value + _distinct(rng, num_rows, config.num_values, pairs)
    num_hay = config.context_len - 2 * pairs
    hay = rng.integers(config.num_noise, size=(num_rows, num_hay))
    items = _distinct(rng, num_rows, pairs + num_hay, pairs)
    starts = np.sort(items, axis=1) + np.arange(pairs)  # a pair is an item of two tokens
    context = np.zeros((num_rows, config.context_len), dtype=np.int64)
    is_hay = np.ones(context.shape, dtype=bool)
    for offset, tokens in enumerate((keys[:, :pairs], values)):
        np.put_along_axis(context, starts + offset, tokens, axis=1)
        np.put_along_axis(is_hay, starts + offset, False, axis=1)
    context[is_hay] = (first_value + config.num_values + hay).ravel()
    return keys, values, context


def _ask(context: np.ndarray, questions: np.ndarray, answers: np.ndarray) -> RecallBatch:
    ids = np.hstack([context, questions])
    queries = np.broadcast_to(np.arange(context.shape[1], ids.shape[1]), questions.shape)
    return _batch(ids, queries, answers)


def _batch(ids: np.ndarray, queries: np.ndarray, answers: np.ndarray) -> RecallBatch:
    labels = np.full_like(ids, IGNORED)
    np.put_along_axis(labels, queries, answers, axis=1)
    return RecallBatch(
        torch.from_numpy(ids), torch.from_numpy(labels), torch.from_numpy(queries.copy())
    )
