"""Recall tasks: layout, ranges, the laws of what is drawn, and what a guesser would score."""

import math

import numpy as np
import pytest
import torch

from diffattn.errors import ConfigError
from diffattn.lab.data import recall_tasks
from diffattn.lab.data.recall_tasks import NoisyRecallConfig, guessing_ceilings
from diffattn.lab.data.synthetic import IGNORED, generate

TASKS = {
    "noisy": NoisyRecallConfig(num_pairs=3, noise_ratio=0.6, num_queries=5),
    "noisy, every key once": NoisyRecallConfig(num_queries=4, replacement=False),
    "no noise": NoisyRecallConfig(num_pairs=2, noise_ratio=0),
    "2,048 tokens": NoisyRecallConfig(num_pairs=8, noise_ratio=127 / 128, num_queries=1),
}


def exceeds_chi_square(counts, expected):
    """Whether a fit is worse than by chance once in a million (Wilson and Hilferty's quantile)."""
    df = len(counts) - 1
    statistic = ((counts - expected) ** 2 / expected).sum()
    return statistic > df * (1 - 2 / (9 * df) + 4.753 * math.sqrt(2 / (9 * df))) ** 3


@pytest.fixture(params=TASKS.values(), ids=TASKS)
def task(request):
    return request.param


def test_every_answer_stands_once_in_the_context_right_after_its_key(task):
    batch = generate(task, 40, seed=1)
    assert batch.input_ids.shape == batch.labels.shape == (40, task.seq_len)
    assert batch.queries.shape == (40, task.num_queries)
    assert 0 <= batch.input_ids.min() <= batch.input_ids.max() < task.vocab_size
    for ids, labels, queries in zip(batch.input_ids, batch.labels, batch.queries, strict=True):
        assert torch.equal(queries.sort().values, (labels != IGNORED).nonzero().flatten())
        context = ids[: int(queries.min())].tolist()
        for position in queries.tolist():
            key, answer = int(ids[position]), int(labels[position])
            assert context.count(key) == 1
            assert context.count(answer) == 1
            assert context.index(answer) == context.index(key) + 1


def test_a_batch_is_a_function_of_seed_and_index(task):
    torch.manual_seed(1)
    np.random.seed(1)  # noqa: NPY002  the state that must not matter
    first = generate(task, 8, seed=3, index=7)
    torch.manual_seed(2)
    again = generate(task, 8, seed=3, index=7)
    assert torch.equal(first.input_ids, again.input_ids)
    assert torch.equal(first.labels, again.labels)
    for other in (generate(task, 8, seed=4, index=7), generate(task, 8, seed=3, index=8)):
        assert not torch.equal(first.input_ids, other.input_ids)


def test_noisy_pairs_may_stand_anywhere():
    """Two pairs and two noise tokens have six arrangements, equally likely."""
    task = NoisyRecallConfig(num_pairs=2, noise_ratio=1 / 3, num_queries=1)
    assert task.context_len == 6
    ids = generate(task, 6_000, seed=0).input_ids[:, :6]
    is_key = (ids >= 1) & (ids <= 64)
    patterns, counts = np.unique(is_key.numpy(), axis=0, return_counts=True)
    assert len(patterns) == 6
    assert not exceeds_chi_square(counts, np.full(6, 1_000.0))


@pytest.mark.parametrize(("ratio", "context"), [(0, 8), (0.5, 16), (2 / 3, 24), (0.9, 80)])
def test_noise_ratio_sets_the_context(ratio, context):
    task = NoisyRecallConfig(noise_ratio=ratio)
    assert (task.context_len, task.seq_len) == (context, context + 4)
    noise = generate(task, 3, seed=0).input_ids > 128
    assert (noise.sum(1) == context - 8).all()


def test_queries_with_replacement_repeat_and_those_without_do_not():
    def share_of_repeats(replacement):
        task = NoisyRecallConfig(replacement=replacement)
        asked = generate(task, 500, seed=0).input_ids[:, -4:].sort(dim=1).values
        return (asked[:, 1:] == asked[:, :-1]).any(dim=1).float().mean()

    # All four differ with probability 4! / 4**4 = 0.094.
    assert share_of_repeats(replacement=True) == pytest.approx(0.906, abs=0.07)
    assert share_of_repeats(replacement=False) == 0


def test_ceilings():
    chance = {"values": 1 / 64, "pairs": 1 / 4}
    assert guessing_ceilings(NoisyRecallConfig()) == {**chance, "elimination": 1 / 4}
    eliminating = guessing_ceilings(NoisyRecallConfig(replacement=False))
    assert eliminating == {**chance, "elimination": pytest.approx(25 / 48)}
    # The early trial that looked like recall: eight pairs, all asked once.
    eight = NoisyRecallConfig(num_pairs=8, num_queries=8, replacement=False)
    assert guessing_ceilings(eight)["elimination"] == pytest.approx(0.34, abs=0.005)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: NoisyRecallConfig(noise_ratio=1), "noise_ratio must be 0 or more and less than 1"),
        (lambda: NoisyRecallConfig(num_queries=5, replacement=False), "got 5"),
    ],
)
def test_refusals(make, message):
    with pytest.raises(ConfigError, match=message.replace("*", r"\*")):
        make()


def test_every_token_has_a_word(task):
    tokenizer = recall_tasks.recall_tokenizer(task, range(task.vocab_size))
    assert tokenizer(tokenizer.init_kwargs["example"])["input_ids"] == list(range(task.vocab_size))
